"""One shape's inputs and outputs in a GPU's memory, bound to a session once: for runs whose addresses must not change,
and for runs that are timed. Not run on hardware yet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.types import Feeds, ModelInfo
from isorun_backends import cuda_driver
from isorun_backends.onnxruntime.cuda.pinned import Pinned
from isorun_backends.output_shapes import output_shapes, sizes_of

if TYPE_CHECKING:
    import onnxruntime

NO_GRAPH = "-1"
_WARM_UPS = 3  # a session's first runs allocate memory, load kernels and, where it is to, record a graph


class Buffers:
    """To be used by one thread.

    Args:
        session: ONNX Runtime's.
        kind, number: the device.
        info: the model's inputs and outputs.
        feeds: for the shapes.
        identity: the number of the CUDA graph that is recorded and played; ``"-1"`` for none.
        pinned: the host's memory for copies; ``None`` for any.
        stream: what the session runs on. Where it is known, feeds are copied on it from pinned memory, and the host
            waits for none of them.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        kind: str,
        number: int,
        info: ModelInfo,
        feeds: Feeds,
        *,
        identity: str = NO_GRAPH,
        pinned: Pinned | None = None,
        stream: int | None = None,
    ) -> None:
        import onnxruntime

        self._session, self._number, self._pinned, self._identity = session, number, pinned, identity
        self._options = run_options(identity)
        self._binding = session.io_binding()
        make = partial(onnxruntime.OrtValue.ortvalue_from_shape_and_type, device_type=kind, device_id=number)
        self._inputs = {name: make(list(array.shape), array.dtype) for name, array in feeds.items()}
        self._stream, self._staged = stream, []
        if pinned is not None and stream is not None:
            self._staged = [
                (name, value.data_ptr(), pinned.array(feeds[name].shape, feeds[name].dtype))
                for name, value in self._inputs.items()
            ]
        self._outputs = {}
        for name, (shape, dtype) in output_shapes(info, sizes_of(info, feeds)).items():
            self._outputs[name] = (make(list(shape), dtype), shape, dtype)
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, (value, _, _) in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, feeds: Feeds, names: Sequence[str]) -> list[np.ndarray]:
        """Run feeds of this shape in host memory; results are copies there."""
        self._put(feeds)
        self._session.run_with_iobinding(self._binding, self._options)  # it waits for its stream before it returns
        return [self._fetch(*self._outputs[name]) for name in names]

    def times(self, feeds: Feeds, runs: int) -> np.ndarray:
        """Milliseconds on the device, copies of feeds and outputs not counted. The stream has to be known.

        Args:
            feeds: of this shape.
            runs: how many.
        """
        assert self._stream is not None
        self._put(feeds)
        for _ in range(_WARM_UPS):
            self._session.run_with_iobinding(self._binding, self._options)
        # ONNX Runtime is not to wait for the stream, or the host's way back would lie between the events.
        at_once = run_options(self._identity, wait=False)
        return cuda_driver.times(
            self._stream, self._number, lambda: self._session.run_with_iobinding(self._binding, at_once), runs
        )

    def _put(self, feeds: Feeds) -> None:
        if self._staged and self._stream is not None:
            for name, _, array in self._staged:
                np.copyto(array, feeds[name])
            copies = [(address, array) for _, address, array in self._staged]
            cuda_driver.copy_to_device(copies, self._stream, self._number)
            return
        for name, value in self._inputs.items():
            value.update_inplace(np.ascontiguousarray(feeds[name]))

    def _fetch(self, value: onnxruntime.OrtValue, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        if self._pinned is None:
            return np.array(value.numpy())
        return self._pinned.fetch(value.data_ptr(), shape, dtype)


def run_options(identity: str = NO_GRAPH, *, wait: bool = True) -> onnxruntime.RunOptions:
    """For one run.

    Args:
        identity: the number of the CUDA graph that is recorded and played. Without any, a session that records would
            take 0.
        wait: whether the run waits for the device before it returns.
    """
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", identity)
    if not wait:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options
