"""The boundary to plugins: what they compile and run is checked, and what they raise becomes an error of isorun."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from isorun.errors import BackendFailed, IsorunError
from isorun.plugin.backend import (
    Backend,
    Binding,
    Executable,
    SupportsBinding,
    SupportsDeviceArrays,
    SupportsDeviceTimes,
)
from isorun.plugin.device_arrays import DeviceArray
from isorun.types import CompileConfig, Feeds, LoweredModel, RuntimeReport

_T = TypeVar("_T")


def compile_guarded(backend: Backend, model: LoweredModel, config: CompileConfig) -> Guarded:
    """Compile a model, and check all that its executable returns from then on.

    Raises:
        BackendFailed: the plugin raises an exception of its own, or returns something else than an executable.
        IsorunError: as :meth:`isorun.plugin.Backend.compile` says.
    """
    executable: object = _called(backend, backend.compile, model, config)
    if not isinstance(executable, Executable):
        raise _violation(backend, "compile()", "an isorun.plugin.Executable", executable)
    return Guarded(backend, executable)


class Guarded(Executable):
    """A plugin's executable whose results are checked.

    Args:
        backend: the plugin's.
        executable: what it compiled.

    Attributes:
        details: added to those of its reports.
    """

    def __init__(self, backend: Backend, executable: Executable) -> None:
        self.details: dict[str, Any] = {}
        self._backend = backend
        self._executable: Any = executable  # with any optional abilities
        self._run = executable.run

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        try:
            results: Any = self._run(output_names, feeds)
        except IsorunError:
            raise
        except Exception as error:
            raise _failure(self._backend, "run()", error) from error
        if type(results) is not list or len(results) != len(output_names):
            raise _wrong_results(self._backend, "run()", results, len(output_names))
        return results

    def run_on_device(self, output_names: Sequence[str], feeds: Feeds) -> list[DeviceArray]:
        if not isinstance(self._executable, SupportsDeviceArrays):
            raise _violation(self._backend, "compile()", "an executable with run_on_device()", self._executable)
        results: Any = _called(self._backend, self._executable.run_on_device, output_names, feeds)
        if type(results) is not list or len(results) != len(output_names):
            raise _wrong_results(self._backend, "run_on_device()", results, len(output_names))
        return results

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        if isinstance(self._executable, SupportsBinding):
            bound: object = _called(self._backend, self._executable.bind, feeds, outputs)
            if not isinstance(bound, Binding):
                raise _violation(self._backend, "bind()", "an isorun.plugin.Binding", bound)
        else:
            bound = Binding(self._executable, feeds, outputs)
        return _GuardedBinding(self._backend, bound, len(outputs))

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        if not isinstance(self._executable, SupportsDeviceTimes):
            return None
        return _called(self._backend, self._executable.device_times, feeds, runs)

    def report(self) -> RuntimeReport:
        report: object = _called(self._backend, self._executable.report)
        if not isinstance(report, RuntimeReport):
            raise _violation(self._backend, "report()", "an isorun.plugin.RuntimeReport", report)
        return replace(report, details={**report.details, **self.details})

    def close(self) -> None:
        _called(self._backend, self._executable.close)


class _GuardedBinding(Binding):
    def __init__(self, backend: Backend, bound: Binding, outputs: int) -> None:
        self._backend, self._bound, self._count = backend, bound, outputs

    def run(self) -> list[Any]:
        results: Any = _called(self._backend, self._bound.run)
        if type(results) is not list or len(results) != self._count:
            raise _wrong_results(self._backend, "a binding's run()", results, self._count)
        return results


def _called(backend: Backend, method: Callable[..., _T], *arguments: object) -> _T:
    try:
        return method(*arguments)
    except IsorunError:
        raise
    except Exception as error:
        raise _failure(backend, f"{method.__name__}()", error) from error


def _failure(backend: Backend, method: str, error: Exception) -> BackendFailed:
    return BackendFailed(f"{backend.name}: {method} raised {type(error).__name__}: {error}. {_report(backend)}")


def _wrong_results(backend: Backend, method: str, results: object, count: int) -> BackendFailed:
    expected = f"a list of {count} output{'' if count == 1 else 's'}"
    if isinstance(results, list):
        return BackendFailed(f"{backend.name}: {method} must return {expected}, got {len(results)}. {_report(backend)}")
    return _violation(backend, method, expected, results)


def _violation(backend: Backend, method: str, expected: str, got: object) -> BackendFailed:
    return BackendFailed(
        f"{backend.name}: {method} must return {expected}, got {type(got).__name__}. {_report(backend)}"
    )


def _report(backend: Backend) -> str:
    return f"Report it to the authors of {type(backend).__module__}"
