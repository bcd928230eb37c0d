"""A model loaded in one ONNX Runtime session whose tensors are in host memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import BackendFailed, Binding, Executable, Feeds, RuntimeReport, runtime_errors
from isorun_backends.common_types import WideFeeds
from isorun_backends.onnxruntime import placement
from isorun_backends.onnxruntime.session import versions

if TYPE_CHECKING:
    import onnxruntime


class OrtExecutable(Executable):
    """A loaded model. ONNX Runtime's sessions are thread-safe.

    Args:
        session: ONNX Runtime's session, with its assignment of nodes recorded.
        precision: what matrix products are computed in.
        packages: versions of other packages involved, by name.
        operators: how many nodes of each operator each provider runs; read from the session by default.
    """

    def __init__(
        self,
        name: str,
        session: onnxruntime.InferenceSession,
        device: str,
        precision: str,
        packages: Mapping[str, str] | None = None,
        details: Mapping[str, Any] | None = None,
        operators: dict[str, dict[str, int]] | None = None,
    ) -> None:
        self._operators = operators
        self._name, self._device, self._precision = name, device, precision
        self._packages, self._details = dict(packages or {}), dict(details or {})
        self._session = session
        self._run = session.run

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        try:
            results: list[Any] = self._run(output_names, feeds)
        except Exception:  # around each run, runtime_errors() would cost a microsecond
            with runtime_errors(f"{self._name} failed while running"):
                raise
        return results

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        kinds = {output.name: output.type for output in self._session.get_outputs()}
        tensors = all(isinstance(value, np.ndarray) and value.dtype.kind not in "OU" for value in feeds.values())
        if not tensors or not all(kinds[name].startswith("tensor(") and name not in feeds for name in outputs):
            # ONNX Runtime binds no strings, sequences and optional values, and writes no output that is an input.
            return Binding(self, feeds, outputs)
        with runtime_errors(f"{self._name} cannot bind"):
            return _OrtBinding(self._name, self, self._session, feeds, outputs)

    def operators(self) -> dict[str, dict[str, int]]:
        """Provider to operators, and how many nodes of each it runs."""
        if self._operators is not None:
            return self._operators
        return placement.count(placement.assigned(self._name, self._session))

    def report(self) -> RuntimeReport:
        return RuntimeReport(
            device=self._device,
            precision=self._precision,
            operators=self.operators(),
            versions={**versions(), **self._packages},
            details=self._details,
        )

    def close(self) -> None:
        # A run in flight on another thread holds the session; the last reference frees it.
        del self._session, self._run


class PluginExecutable(OrtExecutable):
    """A model loaded on a plugin provider, without ONNX Runtime's own binding.

    With onnxruntime-ep-openvino 1.8.1 a binding returns wrong outputs, of other runs or none, where ``run`` is right.

    Args:
        lock: held while the session runs and while it is freed; ``None`` if sessions do not disturb each other.
        wide: rejects integers that the provider would cut; ``None`` for others.
        arguments: of :class:`OrtExecutable`.
    """

    def __init__(self, *arguments: Any, lock: threading.RLock | None = None, wide: WideFeeds | None = None) -> None:
        self._lock, self._wide = lock, wide
        super().__init__(*arguments)

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        if self._wide:
            self._wide.reject(feeds)
        if self._lock is None:
            return super().run(output_names, feeds)
        with self._lock:
            return super().run(output_names, feeds)

    def close(self) -> None:
        with self._lock or nullcontext():
            super().close()

    def bind(self, feeds: Feeds, outputs: Mapping[str, np.ndarray | None]) -> Binding:
        return Binding(self, feeds, outputs)


class _OrtBinding(Binding):
    """ONNX Runtime's own binding: inputs are read in place, results written to the caller's memory."""

    def __init__(
        self,
        name: str,
        executable: OrtExecutable,
        session: onnxruntime.InferenceSession,
        feeds: Feeds,
        outputs: Mapping[str, np.ndarray | None],
    ) -> None:
        import onnxruntime

        super().__init__(executable, feeds, outputs)
        self._name = name
        self._session = session
        self._targets = list(outputs.values())
        self._new = [key for key, target in outputs.items() if target is None]
        self._feeds = {key: np.asarray(array, order="C") for key, array in feeds.items()}
        self._copied = [(feeds[key], copy) for key, copy in self._feeds.items() if copy is not feeds[key]]
        self._binding = session.io_binding()
        for key, array in self._feeds.items():
            self._binding.bind_ortvalue_input(key, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for key, target in outputs.items():
            if target is None:
                self._binding.bind_output(key)
            else:
                self._binding.bind_output(key, "cpu", 0, target.dtype, target.shape, target.ctypes.data)

    def run(self) -> list[Any]:
        for source, copy in self._copied:
            np.copyto(copy, source)
        try:
            with runtime_errors(f"{self._name} failed while running"):
                for key in self._new:  # otherwise ONNX Runtime overwrites the results of the previous run
                    self._binding.bind_output(key)
                self._session.run_with_iobinding(self._binding)
                values = self._binding.get_outputs()
                pairs = zip(values, self._targets, strict=True)
                return [value.numpy() if target is None else target for value, target in pairs]
        except BackendFailed:
            super().run()  # names memory that does not fit, which for symbolic sizes only a run can tell
            raise
