"""A model on a GPU by ONNX Runtime: its feeds and outputs on either side, the form of its mask, CUDA graphs.

Written and tested with the device "cpu" in the place of "cuda": the calls are the same. Not run on hardware yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.plugin.backend import Binding, Executable, check_fits, runtime_errors
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray
from isorun.types import Feeds, ModelInfo, RuntimeReport, TensorSpec
from isorun_backends import cuda_driver
from isorun_backends.onnxruntime.cuda.attention import Masks
from isorun_backends.onnxruntime.cuda.buffers import Buffers, run_options
from isorun_backends.onnxruntime.cuda.graphs import Graphs
from isorun_backends.onnxruntime.cuda.pinned import Pinned

if TYPE_CHECKING:
    import onnxruntime

_T = TypeVar("_T")


class Device(NamedTuple):
    """Where ONNX Runtime runs a model: ``cuda`` and the number of the GPU."""

    kind: str
    number: int


class CudaExecutable(Executable):
    """A model in one or more forms, each a session of ONNX Runtime's that is opened when it is first needed.

    Args:
        name: the backend's.
        open_form: opens the session of a form, on the stream of that handle; ``None`` for the one that its options
            say.
        info: the model's inputs and outputs.
        device: where it runs.
        masks: how a form is chosen.
        describe: makes the report, from the sessions that are open.
        graphs: how many shapes may be kept as CUDA graphs; 0 for none. Where there are any, every run is made by one
            thread of its own: see :mod:`isorun_backends.onnxruntime.cuda.graphs`.
        stream: what sessions with graphs run on; ``None`` for another, which nothing can be put on.
        pinned: the host's memory for outputs; ``None`` for any.
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
        self.name, self.device, self.info = name, device, info
        self.masks, self._open_form, self._describe = masks, open_form, describe
        self._lock = threading.Lock()
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        handle = None if stream is None else stream.handle
        self._graphs = Graphs(device.kind, device.number, info, graphs, pinned, handle) if graphs else None
        self._thread = ThreadPoolExecutor(1, f"isorun-{name}") if graphs else None
        self.pinned = pinned
        self._outputs = {spec.name: spec for spec in info.outputs}
        # One is opened at once, so that a model that cannot run here says so when it is opened.
        self.alone(lambda: self.session(masks.first()))
        self._stream = stream  # the last attribute: it goes after the sessions that run on it

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        names = list(output_names or self._outputs)
        graphs = self._graphs
        if graphs is not None and all(isinstance(array, np.ndarray) for array in feeds.values()):
            form = self.form(feeds)
            if form in self.masks.recordable:
                fed = self.masks.fed(form, feeds)
                return self.alone(lambda: graphs.run(form, self.session(form), names, fed))
        return self.bind(feeds, dict.fromkeys(names)).run()

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        form, graphs = self.form(feeds), self._graphs
        fed = self.masks.fed(form, feeds)

        def own() -> np.ndarray:
            """On the stream that sessions with graphs share."""
            assert graphs is not None
            assert self._stream is not None
            session = self.session(form)
            recorded = graphs.recorded(form, session, fed) if form in self.masks.recordable else None
            held = recorded or self._held(session, fed, self._stream.handle)
            return held.times(fed, runs)

        def apart() -> np.ndarray:
            """On a session that is opened for it and gone before its stream: those that serve run on ONNX Runtime's own
            streams, one thread's beside another's, on which nothing can be put."""
            stream = cuda_driver.Stream(self.device.number)
            return self._times_apart(form, fed, stream.handle, runs)

        return self.alone(apart if graphs is None or self._stream is None else own)

    def run_on_device(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[DeviceArray]:
        wanted: dict[str, Any] = dict.fromkeys(output_names or self._outputs, ON_DEVICE)
        return self.bind(feeds, wanted).run()

    def bind(self, feeds: Feeds, outputs: Mapping[str, Any]) -> Binding:
        return CudaBinding(self, feeds, outputs)

    def form(self, feeds: Feeds) -> str:
        """The form that these feeds run in: :meth:`isorun_backends.onnxruntime.cuda.attention.Masks.form`."""
        return self.masks.form(feeds)

    def alone(self, work: Callable[[], _T]) -> _T:
        """Do something with the sessions: where there are graphs, on their thread, one after another."""
        with runtime_errors(f"{self.name} failed while running"):
            return work() if self._thread is None else self._thread.submit(work).result()

    def session(self, form: str) -> onnxruntime.InferenceSession:
        """The session of a form, opened if it is not yet."""
        session = self._sessions.get(form)
        if session is None:
            with self._lock:
                session = self._sessions.get(form)
                if session is None:
                    session = self._sessions[form] = self._open_form(form, None)
        return session

    def _times_apart(self, form: str, fed: Feeds, stream: int, runs: int) -> np.ndarray:
        return self._held(self._open_form(form, stream), fed, stream).times(fed, runs)

    def _held(self, session: onnxruntime.InferenceSession, fed: Feeds, stream: int) -> Buffers:
        return Buffers(session, *self.device, self.info, fed, pinned=self.pinned, stream=stream)

    def spec(self, name: str) -> TensorSpec:
        """What is known of an output."""
        return self._outputs[name]

    def report(self) -> RuntimeReport:
        with runtime_errors(f"{self.name} does not say where its nodes run"):
            graphs = {} if self._graphs is None else {"cuda_graphs": self._graphs.described()}
            return self._describe(dict(self._sessions), graphs)

    def run_options(self) -> onnxruntime.RunOptions | None:
        """For a run without a graph."""
        return None if self._graphs is None else run_options()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        self._graphs = None
        self._sessions = {}


class CudaBinding(Binding):
    """ONNX Runtime's own bindings, one for each form that a mask has called for.

    An input in host memory is read anew at every run; one on the device is read where it lies, after the work of the
    stream that it came with. ONNX Runtime waits for its own stream before a run returns, so what is left on the device
    is complete.
    """

    def __init__(self, executable: CudaExecutable, feeds: Feeds, outputs: Mapping[str, Any]) -> None:
        super().__init__(executable, feeds, outputs)
        self._cuda = executable
        self._wanted = outputs
        self._bound: dict[str, tuple[onnxruntime.InferenceSession, onnxruntime.IOBinding]] = {}
        self._streams = sorted(
            {
                (array.stream, array.device_id)
                for array in feeds.values()
                if isinstance(array, DeviceArray) and array.stream is not None
            }
        )

    def run(self) -> list[Any]:
        form = self._cuda.form(self._feeds)
        return self._cuda.alone(lambda: self._run(form))

    def _run(self, form: str) -> list[Any]:
        if form not in self._bound:
            session = self._cuda.session(form)
            self._bound[form] = (session, session.io_binding())
            self._bind_outputs(self._bound[form][1], every=True)
        session, binding = self._bound[form]
        self._bind_inputs(binding, self._cuda.masks.fed(form, self._feeds))
        self._bind_outputs(binding, every=False)
        for stream, number in self._streams:
            cuda_driver.synchronize(stream, number)
        session.run_with_iobinding(binding, self._cuda.run_options())
        return [
            self._taken(name, wanted, value)
            for (name, wanted), value in zip(self._wanted.items(), binding.get_outputs(), strict=True)
        ]

    def _bind_inputs(self, binding: onnxruntime.IOBinding, feeds: Feeds) -> None:
        kind, number = self._cuda.device
        for name, array in feeds.items():
            if isinstance(array, DeviceArray):
                if array.device_id != number:
                    raise InvalidFeeds(f"Input {name!r} is on GPU {array.device_id}; this session is on GPU {number}")
                binding.bind_input(name, kind, number, array.dtype, array.shape, array.address)
            else:
                binding.bind_cpu_input(name, np.ascontiguousarray(array))

    def _bind_outputs(self, binding: onnxruntime.IOBinding, *, every: bool) -> None:
        """Those with memory of the caller's once; those without anew, or a run would write over what the last gave."""
        kind, number = self._cuda.device
        for name, wanted in self._wanted.items():
            if wanted is ON_DEVICE or (wanted is None and self._is_pinned(name)):
                binding.bind_output(name, kind, number)
            elif wanted is None:
                binding.bind_output(name)
            elif every and isinstance(wanted, DeviceArray):
                binding.bind_output(name, kind, wanted.device_id, wanted.dtype, wanted.shape, wanted.address)
            elif every:
                binding.bind_output(name, "cpu", 0, wanted.dtype, wanted.shape, wanted.ctypes.data)

    def _is_pinned(self, name: str) -> bool:
        return self._cuda.pinned is not None and self._cuda.spec(name).dtype is not None

    def _taken(self, name: str, wanted: Any, value: onnxruntime.OrtValue) -> Any:
        dtype = self._cuda.spec(name).dtype
        if wanted is None:
            pinned = self._cuda.pinned
            if pinned is None or dtype is None:
                return value.numpy()
            return pinned.fetch(value.data_ptr(), value.shape(), dtype)
        if isinstance(wanted, np.ndarray):
            check_fits(name, wanted, value.shape())
            return wanted
        if isinstance(wanted, DeviceArray):
            return wanted
        if dtype is None:
            raise InvalidFeeds(f"Output {name!r} is {self._cuda.spec(name).type}, which cannot be left on the device")
        return DeviceArray(
            value.data_ptr(), tuple(value.shape()), dtype, self._cuda.device.number, stream=None, owner=value
        )
