"""The isolated environments that cells run in: found, or created before anything runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing

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
from isorun_matrix.text import cut

_LONGEST = 600  # characters of a failure in reports


def make(
    spec: Spec, progress: Lines, *, any_version: bool = False
) -> tuple[dict[str, IsolatedEnvironment], dict[str, dict[str, Capabilities]]]:
    """The environments that a spec's backends run in, by name, and what the backends in them that can be loaded offer.
    Missing ones are created.

    One that cannot be created, or unless ``any_version`` has a version that isorun does not support, affects its own
    cells only.
    """
    records, offers = {}, {}
    for name, backends in spec.isolated.items():
        try:
            environment = _find_or_create(name, spec.environments.get(name), progress)
            packages = environment.packages()
            if not any_version and (old := versions.too_old(packages)):
                raise EnvironmentBroken(f"environment {name!r} cannot be used: {'; '.join(old)}")
            offers[name] = _capabilities(environment, backends)
            records[name] = IsolatedEnvironment(environment.version, environment.install, packages)
        except IsorunError as error:
            if len(str(error)) > _LONGEST:  # the whole output of an installer
                progress.note(str(error))
            records[name] = IsolatedEnvironment(failure=cut(str(error), _LONGEST))
    return records, offers


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


def _capabilities(environment: environments.Environment, backends: Sequence[str]) -> dict[str, Capabilities]:
    capabilities = {}
    with closing(Worker(environment)) as worker:
        for backend in backends:
            try:
                capabilities[backend] = worker.get(backend).capabilities
            except (BackendNotFound, BackendUnavailable):  # its cells report it
                continue
    return capabilities


def _listed(declared: Environment) -> str:
    return ", ".join(declared.install) or "only what isorun needs"
