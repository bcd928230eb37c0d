"""The isolated environments that cells run in: found, or created before anything runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from isorun.errors import BackendNotFound, BackendUnavailable, EnvironmentBroken, IsorunError
from isorun.isolation import environments
from isorun.isolation.environments import interpreters
from isorun.isolation.worker.backend import Worker
from isorun.types import Capabilities
from isorun_matrix.execution.progress import Lines
from isorun_matrix.measurement.machine import IsolatedEnvironment
from isorun_matrix.spec import versions
from isorun_matrix.spec.backends import Environment
from isorun_matrix.spec.spec import Spec


@dataclass(frozen=True)
class Available:
    """An environment that cells run in, available or not.

    Attributes:
        record: what is stored about it.
        capabilities: of the backends in it, by name; of those that can be loaded.
    """

    record: IsolatedEnvironment
    capabilities: Mapping[str, Capabilities] = field(default_factory=dict)


def make(spec: Spec, progress: Lines, *, any_version: bool = False) -> dict[str, Available]:
    """The environments that a spec's backends run in, by name; missing ones are created.

    One that cannot be created, or unless ``any_version`` has a version that isorun does not support, affects its own
    cells only.
    """
    available = {}
    for name, backends in spec.isolated.items():
        try:
            environment = _find_or_create(name, spec.environments.get(name), progress)
            available[name] = _inspect(environment, backends, any_version=any_version)
        except IsorunError as error:
            available[name] = Available(IsolatedEnvironment(failure=str(error)))
    return available


def preview(spec: Spec) -> Iterator[str]:
    """What a run would do about each environment of a spec, a line for each."""
    for name in spec.isolated:
        if name in environments.names():
            yield f"environment {name}: exists, Python {environments.get(name).version}"
            continue
        declared = spec.environments[name]
        try:
            python = interpreters.find(declared.python)
        except IsorunError as error:
            yield f"environment {name}: cannot be created: {error}"
        else:
            yield f"environment {name}: to be created with Python {python}, installing {_listed(declared)}"


def _find_or_create(name: str, declared: Environment | None, progress: Lines) -> environments.Environment:
    if declared is None:
        return environments.get(name)
    if name in environments.names():
        return environments.create(name, python=declared.python, install=declared.install)  # raises if it differs
    started = time.monotonic()
    with progress.working(f"Creating the environment {name}: {_listed(declared)}"):
        created = environments.create(name, python=declared.python, install=declared.install)
    progress.note(f"Created the environment {name} with Python {created.version} in {time.monotonic() - started:.0f} s")
    return created


def _inspect(environment: environments.Environment, backends: Sequence[str], *, any_version: bool) -> Available:
    packages = environment.packages()
    if not any_version and (old := versions.too_old(packages)):
        raise EnvironmentBroken(f"environment {environment.name!r} cannot be used: {'; '.join(old)}")
    capabilities = {}
    with closing(Worker(environment)) as worker:
        for backend in backends:
            try:
                capabilities[backend] = worker.get(backend).capabilities
            except (BackendNotFound, BackendUnavailable):  # its cells report it
                continue
    record = IsolatedEnvironment(environment.version, environment.install, packages)
    return Available(record, capabilities)


def _listed(declared: Environment) -> str:
    return ", ".join(declared.install) or "only what isorun needs"
