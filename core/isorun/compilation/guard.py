"""The boundary to plugins: what they compile and run is checked, and what they raise becomes an error of isorun.

A run that fails may leave the compiled model in a state in which later runs are wrong (OpenVINO 2026.4). Unless the
backend declares ``usable_after_failure``, runs of one executable are serialized, and the model is compiled again before
the run that follows a failure.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from isorun.compilation.index_check import IndexChecked, with_counts
from isorun.compilation.output_check import OutputCheck
from isorun.errors import BackendFailed, IsorunError, WorkerDied, WorkerTimeout
from isorun.plugin.backend import (
    Backend,
    Binding,
    Executable,
    SupportsBinding,
    SupportsDeviceArrays,
    SupportsDeviceTimes,
)
from isorun.plugin.device_arrays import DeviceArray
from isorun.types import INDEX_NOTE, CompileConfig, Feeds, LoweredModel, RuntimeReport

_T = TypeVar("_T")

_logger = logging.getLogger("isorun")


class Recompilations:
    """Counts how often a session's models were compiled again after a failed run.

    Attributes:
        count: how often.
        reason: the last failure.
    """

    def __init__(self) -> None:
        self.count = 0
        self.reason = ""
        self._lock = threading.Lock()

    def add(self, reason: str) -> None:
        """Count one more."""
        with self._lock:
            self.count += 1
            self.reason = reason


def compile_guarded(
    backend: Backend,
    model: LoweredModel,
    config: CompileConfig,
    *,
    verify: Callable[[], object] = lambda: None,
    recompilations: Recompilations | None = None,
) -> Guarded:
    """Compile a model, and check all that its executable returns from then on.

    Args:
        backend, model, config: what to compile.
        verify: called after every compilation; raises an error if the model's file is no longer what was opened.
        recompilations: counts compilations after failed runs.

    Raises:
        BackendFailed: the plugin raises an exception of its own, or returns something else than an executable.
        IsorunError: as :meth:`isorun.plugin.Backend.compile` says.
    """

    def compiled() -> Executable:
        executable: object = _called(backend, "compile()", backend.compile, with_counts(model), config)
        if not isinstance(executable, Executable):
            raise _violation(backend, "compile()", _instead("an isorun.plugin.Executable", executable))
        try:
            verify()
        except BaseException:
            executable.close()
            raise
        checked = model.notes.get(INDEX_NOTE)
        return IndexChecked(executable, checked) if checked else executable

    return Guarded(backend, compiled, OutputCheck(model.info, config.precision), recompilations or Recompilations())


class Guarded(Executable):
    """A plugin's executable whose results are checked, compiled again after a failure.

    Args:
        backend: the plugin's.
        compile_: compiles the model.
        check: of its outputs.
        recompilations: counts those after failed runs.

    Attributes:
        details: added to those of its reports.
    """

    def __init__(
        self,
        backend: Backend,
        compile_: Callable[[], Executable],
        check: OutputCheck,
        recompilations: Recompilations,
    ) -> None:
        self.details: dict[str, Any] = {}
        self._backend = backend
        self._compile = compile_
        self._problem = check.problem
        self._recompilations = recompilations
        # Without the lock, a run could follow the failed one before the failure is known here.
        self._lock = None if backend.capabilities.usable_after_failure else threading.Lock()
        self._failure = ""  # why the executable must not be used again
        self._closed = False
        self._report: RuntimeReport | None = None
        self._executable: Any = compile_()  # with any optional abilities
        self._run = self._executable.run

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        if self._lock is None:
            try:
                results: Any = self._run(output_names, feeds)
            except IsorunError:
                raise
            except Exception as error:
                raise _failure(self._backend, "run()", error) from error
        else:
            results = self.call("run()", lambda executable: executable.run(output_names, feeds))
        if problem := self._problem(output_names, results, feeds):
            raise _violation(self._backend, "run()", problem)
        return results  # type: ignore[no-any-return]

    def call(self, method: str, function: Callable[[Any], _T]) -> _T:
        """Call a function of the executable; after a failure, of a newly compiled one.

        Args:
            method: what it calls, for messages.
            function: called with the executable.

        Raises:
            BackendFailed: the runtime failed.
        """
        if self._lock is None:
            return _called(self._backend, method, function, self._executable)
        with self._lock:
            if self._failure:
                self._compile_again()
            try:
                return _called(self._backend, method, function, self._executable)
            except (WorkerDied, WorkerTimeout):
                raise  # the worker is replaced
            except BaseException as error:
                if not isinstance(error, IsorunError) or isinstance(error, BackendFailed):
                    self._failure = f"{type(error).__name__}: {error}"
                raise

    def check(self, method: str, results: Any, output_names: Sequence[str], feeds: Feeds) -> None:
        """Check that results are those that were requested.

        Raises:
            BackendFailed: they are not.
        """
        if problem := self._problem(output_names, results, feeds):
            raise _violation(self._backend, method, problem)

    def run_on_device(self, output_names: Sequence[str], feeds: Feeds) -> list[DeviceArray]:
        if not isinstance(self._executable, SupportsDeviceArrays):
            raise _violation(
                self._backend, "compile()", _instead("an executable with run_on_device()", self._executable)
            )
        results: Any = self.call("run_on_device()", lambda executable: executable.run_on_device(output_names, feeds))
        self.check("run_on_device()", results, output_names, feeds)
        return results  # type: ignore[no-any-return]

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        return _GuardedBinding(self, feeds, outputs)

    def bind_to(self, executable: Any, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        """Bind arrays to an executable of this model."""
        if not isinstance(executable, SupportsBinding):
            return Binding(executable, feeds, outputs)
        bound: object = executable.bind(feeds, outputs)
        if not isinstance(bound, Binding):
            raise _violation(self._backend, "bind()", _instead("an isorun.plugin.Binding", bound))
        return bound

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        if not isinstance(self._executable, SupportsDeviceTimes):
            return None
        times: np.ndarray | None = self.call("device_times()", lambda executable: executable.device_times(feeds, runs))
        return times

    def report(self) -> RuntimeReport:
        if self._report is None:
            report: object = _called(
                self._backend, "report()", lambda executable: executable.report(), self._executable
            )
            if not isinstance(report, RuntimeReport):
                raise _violation(self._backend, "report()", _instead("an isorun.plugin.RuntimeReport", report))
            self._report = report
        return replace(self._report, details={**self._report.details, **self.details})

    def close(self) -> None:
        with self._lock or nullcontext():
            self._closed = True
            _called(self._backend, "close()", self._executable.close)

    def _compile_again(self) -> None:
        if self._closed:
            raise BackendFailed(f"{self._backend.name}: the model is closed")
        failed, self._executable = self._executable, self._compile()
        self._run, self._report = self._executable.run, None
        level = logging.DEBUG if self._recompilations.count else logging.WARNING  # once for each session
        _logger.log(level, "%s: the model is compiled again, since a run failed: %s", self._backend.name, self._failure)
        self._recompilations.add(self._failure)
        self._failure = ""
        _called(self._backend, "close()", failed.close)


class _GuardedBinding(Binding):
    """A binding to whichever compilation of the model is current."""

    def __init__(self, guarded: Guarded, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> None:
        super().__init__(guarded, feeds, outputs)
        self._guarded = guarded
        self._bound: tuple[Any, Binding] | None = None
        guarded.call("bind()", self._binding)

    def run(self) -> list[Any]:
        results = self._guarded.call("a binding's run()", lambda executable: self._binding(executable).run())
        names = list(self._outputs)
        self._guarded.check("a binding's run()", results, names, self._feeds)
        return results

    def _binding(self, executable: Any) -> Binding:
        if self._bound is None or self._bound[0] is not executable:
            self._bound = executable, self._guarded.bind_to(executable, self._feeds, self._outputs)
        return self._bound[1]


def _called(backend: Backend, method: str, function: Callable[..., _T], *arguments: object) -> _T:
    try:
        return function(*arguments)
    except IsorunError:
        raise
    except Exception as error:
        raise _failure(backend, method, error) from error


def _failure(backend: Backend, method: str, error: Exception) -> BackendFailed:
    return BackendFailed(f"{backend.name}: {method} raised {type(error).__name__}: {error}. {_report(backend)}")


def _violation(backend: Backend, method: str, problem: str) -> BackendFailed:
    return BackendFailed(f"{backend.name}: {method} must return {problem}. {_report(backend)}")


def _instead(expected: str, actual: object) -> str:
    return f"{expected}, got {type(actual).__name__}"


def _report(backend: Backend) -> str:
    return f"Report it to the authors of {type(backend).__module__}"
