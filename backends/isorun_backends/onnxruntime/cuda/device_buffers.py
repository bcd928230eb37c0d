"""Inputs and outputs of one shape in device memory, bound to a session once.

For runs whose addresses must not change (CUDA graphs) and for timed runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Feeds, ModelInfo
from isorun_backends.nvidia.device_memory import Buffer, DeviceMemory
from isorun_backends.nvidia.output_shapes import output_shapes, sizes_of

if TYPE_CHECKING:
    import onnxruntime

NO_GRAPH = "-1"
_WARM_UPS = 3  # the first runs allocate memory, load kernels and may record a graph


class DeviceBuffers:
    """To be used by one thread.

    Args:
        feeds: for the shapes.
        stream: the session's stream, on which feeds and outputs are copied.
        graph_id: the number under which ONNX Runtime records and replays a CUDA graph; ``"-1"`` for no graph.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        kind: str,
        index: int,
        info: ModelInfo,
        feeds: Feeds,
        memory: DeviceMemory,
        stream: int,
        *,
        graph_id: str = NO_GRAPH,
    ) -> None:
        self._session, self._memory, self._stream, self._graph_id = session, memory, stream, graph_id
        self._options = run_options(graph_id)
        self._binding = session.io_binding()
        outputs = output_shapes(info, sizes_of(info, feeds))
        self._shapes = {name: shape for name, (shape, _) in outputs.items()}
        with memory.current():
            self._inputs = {name: Buffer(memory, array.shape, array.dtype) for name, array in feeds.items()}
            self._outputs = {name: Buffer(memory, shape, dtype) for name, (shape, dtype) in outputs.items()}
        for name, buffer in self._inputs.items():
            self._binding.bind_input(name, kind, index, buffer.dtype, feeds[name].shape, buffer.device.address)
        for name, buffer in self._outputs.items():
            self._binding.bind_output(name, kind, index, buffer.dtype, self._shapes[name], buffer.device.address)

    def run(self, feeds: Feeds, names: Sequence[str]) -> list[np.ndarray]:
        """Run feeds of this shape in host memory; the results are copies there."""
        with self._memory.current():
            self._copy_in(feeds)
            self._session.run_with_iobinding(self._binding, self._options)
            for name in names:
                buffer = self._outputs[name]
                self._memory.to_host(buffer.host(self._shapes[name]), buffer.device.address, self._stream)
            self._memory.synchronize(self._stream)
            return [self._outputs[name].host(self._shapes[name]).copy() for name in names]

    def times(self, feeds: Feeds, runs: int) -> np.ndarray:
        """Milliseconds on the device for feeds of this shape, without copies of feeds and outputs."""
        with self._memory.current():
            self._copy_in(feeds)
            for _ in range(_WARM_UPS):
                self._session.run_with_iobinding(self._binding, self._options)
            # If ONNX Runtime waited for the stream, the host's return would fall between the events.
            options = run_options(self._graph_id, wait=False)
            return self._memory.times(
                self._stream, lambda: self._session.run_with_iobinding(self._binding, options), runs
            )

    def _copy_in(self, feeds: Feeds) -> None:
        for name, buffer in self._inputs.items():
            host = buffer.host(feeds[name].shape)
            np.copyto(host, feeds[name])
            self._memory.to_device(buffer.device.address, host, self._stream)


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
