"""The isolated environments that cells run in: those that are there, and those that a run has to make first."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from isorun.errors import BackendNotFound, BackendUnavailable, IsorunError
from isorun.isolation import environments
from isorun.isolation.environments import interpreters
from isorun.isolation.worker.backend import Worker
from isorun_matrix.execution.progress import Lines
from isorun_matrix.spec.backends import Environment
from isorun_matrix.spec.spec import Spec


@dataclass(frozen=True)
class Isolated:
    """An environment that cells run in.

    Attributes:
        about: ``python``, ``install`` and ``packages`` (versions by name), as plain data.
        dialects: what the backends that run there read, each combination once.
        failure: why it cannot be had; ``None`` where it can.
    """

    about: dict[str, Any]
    dialects: tuple[tuple[str, ...], ...] = ()
    failure: str | None = None


def make(spec: Spec, watcher: Lines) -> dict[str, Isolated]:
    """The environments that a spec's backends run in, by name; those that are missing are made.

    One that cannot be had fails its own cells and nothing else.
    """
    found = {}
    for name, backends in spec.isolated.items():
        try:
            found[name] = _ask(_there(name, spec.environments.get(name), watcher), backends)
        except IsorunError as error:
            found[name] = Isolated({"failure": str(error)}, failure=str(error))
    return found


def outlook(spec: Spec) -> Iterator[str]:
    """What a run would find of the environments of a spec, and what it would make: a line for each."""
    for name in spec.isolated:
        if name in environments.names():
            yield f"environment {name}: made, Python {environments.get(name).version}"
            continue
        declared = spec.environments[name]
        try:
            python = str(interpreters.find(declared.python))
        except IsorunError as error:
            yield f"environment {name}: cannot be made: {error}"
        else:
            yield f"environment {name}: to be made with Python {python}, installing {_listed(declared)}"


def _there(name: str, declared: Environment | None, watcher: Lines) -> environments.Environment:
    """An environment, made from what the spec declares where it is missing."""
    if declared is None:
        return environments.get(name)
    if name in environments.names():
        return environments.create(name, python=declared.python, install=declared.install)  # or an error: it differs
    started = time.monotonic()
    with watcher.making(f"Making the environment {name}: {_listed(declared)}"):
        made = environments.create(name, python=declared.python, install=declared.install)
    watcher.say(f"Made the environment {name} with Python {made.version} in {time.monotonic() - started:.0f} s")
    return made


def _ask(environment: environments.Environment, backends: Sequence[str]) -> Isolated:
    dialects = []
    with closing(Worker(environment)) as worker:
        for backend in backends:
            try:
                dialects.append(worker.get(backend).capabilities.dialects)
            except (BackendNotFound, BackendUnavailable):  # its cells say so
                continue
    about = {
        "python": environment.version,
        "install": list(environment.install),
        "packages": environment.packages(),
    }
    return Isolated(about, tuple(dict.fromkeys(dialects)))


def _listed(declared: Environment) -> str:
    return ", ".join(declared.install) or "nothing but what isorun needs"
