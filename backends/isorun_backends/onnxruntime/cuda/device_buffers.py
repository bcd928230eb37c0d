"""Inputs and outputs of one shape in device memory, bound to a session once.

For runs whose addresses must not change (CUDA graphs) and for timed runs. Not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import Feeds, ModelInfo
from isorun_backends.nvidia import cuda_driver
from isorun_backends.nvidia.output_shapes import output_shapes, sizes_of
from isorun_backends.nvidia.pinned import Pinned

if TYPE_CHECKING:
    import onnxruntime

NO_GRAPH = "-1"
_WARM_UPS = 3  # the first runs allocate memory, load kernels and may record a graph


class DeviceBuffers:
    """To be used by one thread.

    Args:
        session: ONNX Runtime's session.
        kind, index: the device.
        info: the model's inputs and outputs.
        feeds: for the shapes.
        graph_id: the number under which ONNX Runtime records and replays a CUDA graph; ``"-1"`` for no graph.
        pinned: pinned host memory for copies; ``None`` for ordinary memory.
        stream: the session's stream, if it is known. Feeds are then copied on it from pinned memory, without waiting.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        kind: str,
        index: int,
        info: ModelInfo,
        feeds: Feeds,
        *,
        graph_id: str = NO_GRAPH,
        pinned: Pinned | None = None,
        stream: int | None = None,
    ) -> None:
        import onnxruntime

        self._session, self._index, self._pinned, self._graph_id = session, index, pinned, graph_id
        self._options = run_options(graph_id)
        self._binding = session.io_binding()
        allocate = partial(onnxruntime.OrtValue.ortvalue_from_shape_and_type, device_type=kind, device_id=index)
        self._inputs = {name: allocate(list(array.shape), array.dtype) for name, array in feeds.items()}
        self._stream, self._staged = stream, []
        if pinned is not None and stream is not None:
            self._staged = [
                (name, value.data_ptr(), pinned.array(feeds[name].shape, feeds[name].dtype))
                for name, value in self._inputs.items()
            ]
        self._outputs = {
            name: (allocate(list(shape), dtype), shape, dtype)
            for name, (shape, dtype) in output_shapes(info, sizes_of(info, feeds)).items()
        }
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, (value, _, _) in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, feeds: Feeds, names: Sequence[str]) -> list[np.ndarray]:
        """Run feeds of this shape in host memory; the results are copies there."""
        self._copy_in(feeds)
        self._session.run_with_iobinding(self._binding, self._options)  # returns when its stream is finished
        return [self._fetch(*self._outputs[name]) for name in names]

    def times(self, feeds: Feeds, runs: int) -> np.ndarray:
        """Milliseconds on the device, without copies of feeds and outputs. Needs a known stream.

        Args:
            feeds: of this shape.
            runs: how many.
        """
        assert self._stream is not None
        self._copy_in(feeds)
        for _ in range(_WARM_UPS):
            self._session.run_with_iobinding(self._binding, self._options)
        # If ONNX Runtime waited for the stream, the host's return would fall between the events.
        options = run_options(self._graph_id, wait=False)
        return cuda_driver.times(
            self._stream, self._index, lambda: self._session.run_with_iobinding(self._binding, options), runs
        )

    def _copy_in(self, feeds: Feeds) -> None:
        if self._staged and self._stream is not None:
            for name, _, array in self._staged:
                np.copyto(array, feeds[name])
            copies = [(address, array) for _, address, array in self._staged]
            cuda_driver.copy_to_device(copies, self._stream, self._index)
            return
        for name, value in self._inputs.items():
            value.update_inplace(np.ascontiguousarray(feeds[name]))

    def _fetch(self, value: onnxruntime.OrtValue, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        if self._pinned is None:
            return np.array(value.numpy())
        return self._pinned.fetch(value.data_ptr(), shape, dtype)


def run_options(graph_id: str = NO_GRAPH, *, wait: bool = True) -> onnxruntime.RunOptions:
    """Options of one run.

    Args:
        graph_id: the number of the CUDA graph. Without a number, a session that records graphs would use 0.
        wait: whether the run waits for the device before it returns.
    """
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", graph_id)
    if not wait:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options
