"""A model on a GPU through ONNX Runtime: feeds and outputs in host or device memory, forms of the mask, CUDA graphs.

Developed and tested with the device "cpu" instead of "cuda", which uses the same calls. Not run on a GPU yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from isorun.plugin import (
    ON_DEVICE,
    Binding,
    DeviceArray,
    Feeds,
    InvalidFeeds,
    ModelInfo,
    RuntimeReport,
    check_fits,
    runtime_errors,
)
from isorun_backends.nvidia import cuda_driver
from isorun_backends.nvidia.gpu import GpuExecutable, input_address
from isorun_backends.nvidia.pinned import Pinned
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.device_buffers import DeviceBuffers, run_options
from isorun_backends.onnxruntime.cuda.graphs import Graphs

if TYPE_CHECKING:
    import onnxruntime

_T = TypeVar("_T")


class Device(NamedTuple):
    """ONNX Runtime's name of a device: ``cuda`` and the index of the GPU."""

    kind: str
    number: int


class CudaExecutable(GpuExecutable):
    """A model in one or more forms, each a session of ONNX Runtime that is opened at its first use.

    Args:
        name: the backend's name.
        open_form: opens the session of a form on the stream of a handle, or, for ``None``, on the default of its
            options.
        info: the model's inputs and outputs.
        device: where it runs.
        masks: chooses the form for a mask.
        describe: makes the report from the open sessions and details.
        graphs: how many shapes to keep as CUDA graphs; 0 for none. With graphs, one thread makes all runs: see
            :mod:`isorun_backends.onnxruntime.cuda.graphs`.
        stream: the stream of sessions with graphs; ``None`` if they run on another one.
        pinned: pinned host memory for outputs; ``None`` for ordinary memory.
    """

    def __init__(
        self,
        name: str,
        open_form: Callable[[str, int | None], onnxruntime.InferenceSession],
        info: ModelInfo,
        device: Device,
        masks: Masks,
        describe: Callable[[Mapping[str, onnxruntime.InferenceSession], Mapping[str, Any]], RuntimeReport],
        graphs: int = 0,
        stream: cuda_driver.Stream | None = None,
        pinned: Pinned | None = None,
    ) -> None:
        super().__init__(name, info, device.number)
        self.device, self.masks, self.pinned = device, masks, pinned
        self._open_form, self._describe = open_form, describe
        self._lock = threading.Lock()
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        handle = None if stream is None else stream.handle
        self._graphs = Graphs(*device, info, graphs, pinned, handle) if graphs else None
        self._thread = ThreadPoolExecutor(1, f"isorun-{name}") if graphs else None
        # The first form is opened now, so that a model that cannot run fails here.
        self.exclusively(lambda: self.session(masks.first()))
        self._stream = stream  # the last attribute: destroyed after the sessions that run on it

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        graphs = self._graphs
        if graphs is not None and all(isinstance(array, np.ndarray) for array in feeds.values()):
            form = self.form(feeds)
            if form in self.masks.recordable:
                fed, names = self.masks.fed(form, feeds), list(output_names or self.output_specs)
                return self.exclusively(lambda: graphs.run(form, self.session(form), names, fed))
        return super().run(output_names, feeds)

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        form, graphs, stream = self.form(feeds), self._graphs, self._stream
        fed = self.masks.fed(form, feeds)

        def measure() -> np.ndarray:
            if graphs is not None and stream is not None:
                session = self.session(form)
                recorded = graphs.buffers(form, session, fed) if form in self.masks.recordable else None
                return (recorded or self._buffers(session, fed, stream.handle)).times(fed, runs)
            # The sessions in use run on ONNX Runtime's own streams, one per thread, which cannot take events. The
            # session for this measurement is released in the call below, before its stream.
            temporary = cuda_driver.Stream(self.device.number)
            return self._time_new_session(form, fed, temporary.handle, runs)

        return self.exclusively(measure)

    def _time_new_session(self, form: str, fed: Feeds, stream: int, runs: int) -> np.ndarray:
        return self._buffers(self._open_form(form, stream), fed, stream).times(fed, runs)

    def _buffers(self, session: onnxruntime.InferenceSession, fed: Feeds, stream: int) -> DeviceBuffers:
        return DeviceBuffers(session, *self.device, self.info, fed, pinned=self.pinned, stream=stream)

    def bind(self, feeds: Feeds, outputs: Mapping[str, Any]) -> Binding:
        return CudaBinding(self, feeds, outputs)

    def form(self, feeds: Feeds) -> str:
        """The form that these feeds run in: :meth:`isorun_backends.onnxruntime.cuda.attention.Masks.form`."""
        return self.masks.form(feeds)

    def exclusively(self, work: Callable[[], _T]) -> _T:
        """Do work with the sessions; with graphs, on their thread, one call after another."""
        with runtime_errors(f"{self.name} failed while running"):
            return work() if self._thread is None else self._thread.submit(work).result()

    def session(self, form: str) -> onnxruntime.InferenceSession:
        """The session of a form, opened at the first use."""
        session = self._sessions.get(form)
        if session is None:
            with self._lock:
                session = self._sessions.get(form)
                if session is None:
                    session = self._sessions[form] = self._open_form(form, None)
        return session

    def report(self) -> RuntimeReport:
        with runtime_errors(f"{self.name} cannot report where its nodes run"):
            graphs = {} if self._graphs is None else {"cuda_graphs": self._graphs.described()}
            return self._describe(dict(self._sessions), graphs)

    def run_options(self) -> onnxruntime.RunOptions | None:
        """Options of a run without a graph."""
        return None if self._graphs is None else run_options()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        self._graphs = None
        self._sessions = {}


class CudaBinding(Binding):
    """ONNX Runtime's own bindings, one per form that the mask has required.

    A feed in host memory is copied at every run; a feed on the device is read in place, after its stream. ONNX Runtime
    waits for its own stream before a run returns, so outputs on the device are complete.
    """

    def __init__(self, executable: CudaExecutable, feeds: Feeds, outputs: Mapping[str, Any]) -> None:
        super().__init__(executable, feeds, outputs)
        self._cuda = executable
        self._targets = outputs
        self._bound: dict[str, tuple[onnxruntime.InferenceSession, onnxruntime.IOBinding]] = {}

    def run(self) -> list[Any]:
        form = self._cuda.form(self._feeds)
        return self._cuda.exclusively(lambda: self._run(form))

    def _run(self, form: str) -> list[Any]:
        first = form not in self._bound
        if first:
            session = self._cuda.session(form)
            self._bound[form] = (session, session.io_binding())
        session, binding = self._bound[form]
        self._bind_inputs(binding, self._cuda.masks.fed(form, self._feeds))
        self._bind_outputs(binding, first=first)
        session.run_with_iobinding(binding, self._cuda.run_options())
        return [
            self._result(name, target, value)
            for (name, target), value in zip(self._targets.items(), binding.get_outputs(), strict=True)
        ]

    def _bind_inputs(self, binding: onnxruntime.IOBinding, feeds: Feeds) -> None:
        kind, index = self._cuda.device
        for name, array in feeds.items():
            if isinstance(array, DeviceArray):
                address = input_address(name, array, index)
                binding.bind_input(name, kind, index, array.dtype, array.shape, address)
            else:
                binding.bind_cpu_input(name, np.ascontiguousarray(array))

    def _bind_outputs(self, binding: onnxruntime.IOBinding, *, first: bool) -> None:
        """Bind the caller's memory once; bind new outputs at every run, or a run would overwrite the previous one's."""
        kind, index = self._cuda.device
        for name, target in self._targets.items():
            if target is ON_DEVICE or (target is None and self._is_pinned(name)):
                binding.bind_output(name, kind, index)
            elif target is None:
                binding.bind_output(name)
            elif first and isinstance(target, DeviceArray):
                binding.bind_output(name, kind, target.device_id, target.dtype, target.shape, target.address)
            elif first:
                binding.bind_output(name, "cpu", 0, target.dtype, target.shape, target.ctypes.data)

    def _is_pinned(self, name: str) -> bool:
        return self._cuda.pinned is not None and self._cuda.output_specs[name].dtype is not None

    def _result(self, name: str, target: Any, value: onnxruntime.OrtValue) -> Any:
        spec, pinned = self._cuda.output_specs[name], self._cuda.pinned
        if target is None:
            if pinned is None or spec.dtype is None:
                return value.numpy()
            return pinned.fetch(value.data_ptr(), value.shape(), spec.dtype)
        if isinstance(target, np.ndarray):
            check_fits(name, target, value.shape())
            return target
        if isinstance(target, DeviceArray):
            return target
        if spec.dtype is None:
            raise InvalidFeeds(f"Output {name!r} is {spec.type}, which cannot stay on the device")
        return DeviceArray(
            value.data_ptr(), tuple(value.shape()), spec.dtype, self._cuda.index, stream=None, owner=value
        )
