"""The backends of an environment as :class:`isorun.plugin.backend.Backend`, run by a worker.

The next call after a worker's death starts another one and compiles the models again.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, TypeVar

from isorun.errors import BackendNotFound, BackendUnavailable, EnvironmentBroken, IsorunError, WorkerDied
from isorun.isolation.environments import Environment
from isorun.isolation.worker.client import Connection
from isorun.isolation.worker.process import DURING_A_CALL, DiedIdle, WorkerProcess
from isorun.plugin.backend import Executable
from isorun.plugin.description import DescribedBackend, Description
from isorun.system import limits, portable
from isorun.system.cleanup import closed_on_error
from isorun.system.packages import how_to_install
from isorun.types import Availability, CompileConfig, Feeds, LoweredModel, RuntimeReport

_T = TypeVar("_T")
_numbers = itertools.count()


class Worker:
    """A session's worker: started when it is first needed, replaced when it has died.

    Args:
        cache_dir: the cache folder of its backends.
        timeout: the time limit of a run or a report in seconds; ``None`` for none.
    """

    def __init__(
        self, environment: Environment, cache_dir: str | os.PathLike[str] | None = None, timeout: float | None = None
    ) -> None:
        self.environment = environment
        self.timeout = timeout
        self._cache_dir = cache_dir
        self._lock = portable.lock_of(self, "_lock", threading.RLock)
        self._connection: Connection | None = None
        self._versions: dict[str, str | None] = {}  # of Python, NumPy and the runtimes in use
        self._closed = False

    def names(self) -> list[str]:
        """The names of the backends in the environment."""
        return list(dict.fromkeys(description["name"] for description in self.connection().ask("descriptions")))

    def candidates(self) -> list[Description]:
        """The candidates of ``backend="auto"`` in the environment: :func:`isorun.plugin.listing.candidates`."""
        return [Description.from_dict(data) for data in self.connection().ask("candidates")]

    def descriptions(self) -> list[Description]:
        """The backends in the environment in full: :func:`isorun.plugin.listing.descriptions`."""
        descriptions = [Description.from_dict(data) for data in self.connection().ask("descriptions")]
        return [
            replace(description, remedy=IsolatedBackend(self, description).availability().remedy)
            if description.status == "unavailable"
            else description
            for description in descriptions
        ]

    def get(self, name: str) -> IsolatedBackend:
        """The backend of that name in the environment.

        Raises:
            BackendNotFound: the environment has none.
            BackendUnavailable: its module does not import.
            EnvironmentBroken: the environment's interpreter cannot be started.
            WorkerDied: the worker was not ready in time, or died.
        """
        where = f"in the environment {self.environment.name!r}"
        try:
            connection = self.connection()
            description = Description.from_dict(connection.ask("backend", name=name))
            self._versions |= {**connection.process.about, name: description.version}
            return IsolatedBackend(self, description)
        except WorkerDied as error:
            raise _blaming(name, error) from None
        except BackendNotFound as error:
            raise BackendNotFound(name, error.installed, f" {where}") from None
        except BackendUnavailable as error:
            raise BackendUnavailable(
                name, error.reason, f"In the environment {self.environment.name!r}: {error.remedy}"
            ) from error.__cause__

    def connection(self) -> Connection:
        """The running worker; started if necessary. Raises ``EnvironmentBroken`` if it cannot be started, or runs other
        versions than the worker before it."""
        with self._lock:
            if self._closed:
                raise IsorunError("This session is closed. Open another.")
            if self._connection is not None and self._connection.process.dead:
                self._connection.close()
                self._connection = None
            if self._connection is None:
                connection = self._start()
                with closed_on_error(connection):
                    self._check_versions(connection)
                self._connection = connection
            return self._connection

    def _start(self) -> Connection:
        environment = self.environment
        environment.check()
        variables = environment.variables(self._cache_dir)
        title = f"The worker of {environment.title}"
        try:
            return Connection(WorkerProcess(str(environment.python), variables, title))
        except OSError as error:
            what = f"The interpreter of the environment {environment.name!r} cannot be started: {error}"
            raise EnvironmentBroken(f"{what}. {limits.advice(error, environment.remedy())}") from error

    def _check_versions(self, connection: Connection) -> None:
        versions: dict[str, str | None] = {**connection.process.about}
        for name in self._versions.keys() - versions:
            versions[name] = connection.ask("backend", name=name)["version"]
        for name, known in self._versions.items():
            if versions[name] != known:
                raise EnvironmentBroken(
                    f"The environment {self.environment.name!r} has changed since this session was opened: the version "
                    f"of {name} was {known} and is {versions[name]}. Open another session"
                )

    def about(self) -> dict[str, str]:
        """The environment's name, and the versions of Python and NumPy there."""
        return {"name": self.environment.name, **self.connection().process.about}

    def close(self) -> None:
        """End the worker."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()


class IsolatedBackend(DescribedBackend):
    """A backend in an environment."""

    def __init__(self, worker: Worker, description: Description) -> None:
        super().__init__(description)
        self._worker = worker
        # Device memory belongs to one process.
        self.capabilities = replace(self.capabilities, device_arrays=False)  # type: ignore[misc]

    def availability(self) -> Availability:
        known = super().availability()
        if known.ok:
            return known
        environment, remedy = self._worker.environment, known.remedy
        needed = self.capabilities.requirement or self.capabilities.package
        if needed is not None and remedy == how_to_install(needed):  # installed with pip, it would not be in the record
            return replace(known, remedy=environment.remedy(needed))
        return replace(known, remedy=f"In the environment {environment.name!r}: {remedy}")

    def accelerators(self, device: str) -> Sequence[str]:
        return tuple(self._worker.connection().ask("accelerators", name=self.name, device=device))

    def compile(self, model: LoweredModel, config: CompileConfig) -> IsolatedExecutable:
        options = {key: _plain(self.name, key, value) for key, value in config.options.items()}
        request = {"name": self.name, "config": {**asdict(config), "options": options}}
        return IsolatedExecutable(self._worker, model, request)


class IsolatedExecutable(Executable):
    """A model that a worker has compiled.

    Args:
        worker: compiles it, and again after it was replaced.
        request: the other arguments of :meth:`isorun.isolation.worker.server.Server.compile`, except the number.

    Attributes:
        renewed: the file to compile in another worker, checked as when it was first opened.
        verify: called after that: raises an error if it is not what was opened.
    """

    def __init__(self, worker: Worker, model: LoweredModel, request: Mapping[str, Any]) -> None:
        self.renewed: Callable[[], LoweredModel] = lambda: model
        self.verify: Callable[[LoweredModel], object] = lambda _: None
        self._worker = worker
        self._request = request
        self._number = next(_numbers)
        self._lock = portable.lock_of(self, "_lock", threading.Lock)
        self._connection = worker.connection()
        self._compile(self._connection, model)

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        def run(connection: Connection) -> list[Any]:
            return connection.run(self._number, output_names, feeds, self._worker.timeout)

        try:
            return self._ask(run)
        except WorkerDied as error:
            raise _blaming(self._request["name"], error) from None

    def report(self) -> RuntimeReport:
        return RuntimeReport(
            **self._ask(lambda connection: connection.ask("report", self._worker.timeout, number=self._number))
        )

    def _ask(self, request: Callable[[Connection], _T]) -> _T:
        """What the worker answers; another one, if this one was dead before the request reached it."""
        connection = self._connection
        if not connection.process.dead:
            with suppress(DiedIdle):  # nothing was lost
                return request(connection)
        return request(self._again())

    def _again(self) -> Connection:
        """A running worker that has compiled this model."""
        with self._lock:
            connection = self._worker.connection()
            if connection is not self._connection:
                model = self.renewed()
                self._compile(connection, model)
                self.verify(model)
                self._connection = connection
            return connection

    def _compile(self, connection: Connection, model: LoweredModel) -> None:
        described = {**asdict(model), "path": str(model.path)}
        try:
            connection.ask("compile", number=self._number, model=described, **self._request)
        except WorkerDied as error:
            raise _blaming(self._request["name"], error) from None

    def close(self) -> None:
        if not self._connection.process.dead:
            self._connection.close_executable(self._number)


def _blaming(name: str, error: WorkerDied) -> WorkerDied:
    """The error with the backend that the worker was busy with, unless it died otherwise."""
    if not error.how.endswith(DURING_A_CALL):
        return error
    kind, how = type(error), f"{error.how} of {name}"
    return kind(how, signal=error.signal, exit_code=error.exit_code, log=error.log)


def _plain(backend: str, key: str, value: Any) -> Any:
    """The value of an option as JSON types."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(backend, key, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(backend, key, item) for item in value]
    raise BackendUnavailable(
        backend,
        f"its option {key!r} holds a value of type {type(value).__name__}, which cannot be sent to an environment",
        "Use numbers, strings, paths, lists and mappings.",
    )
