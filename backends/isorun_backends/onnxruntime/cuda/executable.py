"""A model on a GPU through ONNX Runtime: feeds and outputs in host or device memory, forms of the mask, CUDA graphs.

Without a GPU, tested with the device "cpu" instead of "cuda", which uses the same calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from isorun.plugin import (
    ON_DEVICE,
    BackendFailed,
    BackendUnavailable,
    Binding,
    DeviceArray,
    Feeds,
    InvalidFeeds,
    ModelInfo,
    RuntimeReport,
    check_fits,
    runtime_errors,
)
from isorun_backends.nvidia import recording
from isorun_backends.nvidia.device_memory import DeviceMemory
from isorun_backends.nvidia.gpu import GpuExecutable, check_device, input_address
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
        open_form: opens the session of a form on the stream of a handle, or, for ``None``, on the default of its
            options.
        masks: chooses the form for a mask.
        describe: makes the report from the open sessions and details.
        memory: opens the GPU's memory, for feeds that come with a stream, graphs and timed runs.
        graphs: how many shapes to keep as CUDA graphs; 0 for none. With graphs, one thread makes all runs: see
            :mod:`isorun_backends.onnxruntime.cuda.graphs`.
        stream: the stream of sessions with graphs.
    """

    def __init__(
        self,
        name: str,
        open_form: Callable[[str, int | None], onnxruntime.InferenceSession],
        info: ModelInfo,
        device: Device,
        masks: Masks,
        describe: Callable[[Mapping[str, onnxruntime.InferenceSession], Mapping[str, Any]], RuntimeReport],
        memory: Callable[[], DeviceMemory],
        graphs: int = 0,
        stream: int | None = None,
    ) -> None:
        super().__init__(name, info, device.number)
        self.device, self.masks = device, masks
        self._open_form, self._describe = open_form, describe
        self._lock = threading.Lock()
        self._closed = False
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._graphs = None if stream is None else Graphs(*device, info, graphs, memory(), stream)
        self._thread = ThreadPoolExecutor(1, f"isorun-{name}") if graphs else None
        # The first form is opened now, so that a model that cannot run fails here.
        self.exclusively(lambda: self.session(masks.first()))
        self._stream = stream
        self.memory = memory  # the last attribute: its streams are destroyed after the sessions that run on them

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        graphs = self._graphs
        if graphs is not None and all(isinstance(array, np.ndarray) for array in feeds.values()):
            form = self.form(feeds)
            if form in self.masks.recordable:
                fed, names = self.masks.fed(form, feeds), list(output_names or self.output_specs)
                session = self.exclusively(lambda: self.session(form))
                return self._on_thread(lambda: graphs.run(form, session, names, fed))
        return super().run(output_names, feeds)

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        try:
            memory = self.memory()
        except BackendUnavailable:  # no pycuda: there are no events
            return None
        form = self.form(feeds)
        fed = self.masks.fed(form, feeds)
        return self._on_thread(lambda: self._timed(memory, form, fed, runs))

    def _timed(self, memory: DeviceMemory, form: str, fed: Feeds, runs: int) -> np.ndarray:
        with recording.running() if self._graphs is None else recording.recording():
            return self._times(memory, form, fed, runs)

    def _times(self, memory: DeviceMemory, form: str, fed: Feeds, runs: int) -> np.ndarray:
        graphs = self._graphs
        if graphs is not None and self._stream is not None:
            session = self.session(form)
            recorded = graphs.buffers(form, session, fed) if form in self.masks.recordable else None
            buffers = recorded or DeviceBuffers(session, *self.device, self.info, fed, memory, self._stream)
            return buffers.times(fed, runs)
        # The sessions in use run on ONNX Runtime's own streams, one per thread, which cannot take events. The session
        # for this measurement is released with the end of this call.
        if self._stream is None:
            with memory.current():
                self._stream = memory.stream()
        session = self._open_form(form, self._stream)
        return DeviceBuffers(session, *self.device, self.info, fed, memory, self._stream).times(fed, runs)

    def bind(self, feeds: Feeds, outputs: Mapping[str, Any]) -> Binding:
        return CudaBinding(self, feeds, outputs)

    def form(self, feeds: Feeds) -> str:
        """The form that these feeds run in: :meth:`isorun_backends.onnxruntime.cuda.attention.Masks.form`."""
        return self.masks.form(feeds)

    def exclusively(self, work: Callable[[], _T]) -> _T:
        """Do work with the sessions; with graphs, on their thread, one call after another."""

        def gated() -> _T:
            with recording.running():
                return work()

        return self._on_thread(gated)

    def _on_thread(self, work: Callable[[], _T]) -> _T:
        with runtime_errors(f"{self.name} failed while running"):
            return work() if self._thread is None else self._thread.submit(work).result()

    def session(self, form: str) -> onnxruntime.InferenceSession:
        """The session of a form, opened at the first use. Raises ``BackendFailed`` if the executable is closed."""
        session = self._sessions.get(form)
        if session is None:
            with self._lock:
                if self._closed:
                    raise BackendFailed(f"{self.name}: the session was closed")
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
        with self._lock:  # a form that is being opened is closed with the others
            self._closed = True
        if self._thread is not None:
            self._thread.shutdown()
        with recording.running():  # memory is released
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
        self._bound: dict[str, onnxruntime.IOBinding] = {}

    def run(self) -> list[Any]:
        form = self._cuda.form(self._feeds)
        return self._cuda.exclusively(lambda: self._run(form))

    def _run(self, form: str) -> list[Any]:
        session = self._cuda.session(form)
        first = form not in self._bound
        binding = self._bound.setdefault(form, session.io_binding()) if first else self._bound[form]
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
                address = input_address(name, array, index, self._cuda.memory)
                binding.bind_input(name, kind, index, array.dtype, array.shape, address)
            else:
                binding.bind_cpu_input(name, np.asarray(array, order="C"))

    def _bind_outputs(self, binding: onnxruntime.IOBinding, *, first: bool) -> None:
        """Bind the caller's memory once; bind new outputs at every run, or a run would overwrite the previous one's."""
        kind, index = self._cuda.device
        for name, target in self._targets.items():
            if target is ON_DEVICE:
                binding.bind_output(name, kind, index)
            elif target is None:
                binding.bind_output(name)
            elif first and isinstance(target, DeviceArray):
                check_device(f"Output {name!r}", target, index)
                binding.bind_output(name, kind, index, target.dtype, target.shape, target.address)
            elif first:
                binding.bind_output(name, "cpu", 0, target.dtype, target.shape, target.ctypes.data)

    def _result(self, name: str, target: Any, value: onnxruntime.OrtValue) -> Any:
        spec = self._cuda.output_specs[name]
        if target is None:
            return value.numpy()
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
