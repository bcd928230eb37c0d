"""CUDA graphs through ONNX Runtime's own option: a shape's launches recorded once, then started as one.

ONNX Runtime records a graph for each number in ``gpu_graph_id`` and plays it when the number comes again. That needs
inputs and outputs at fixed addresses, so each shape has buffers of its own on the device, and one run at a time.
Not run on hardware yet.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.types import Feeds, ModelInfo
from isorun_backends.output_shapes import output_shapes, sizes_of

if TYPE_CHECKING:
    import onnxruntime

_NO_GRAPH = "-1"

Key = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]


class Graphs:
    """The graphs of one model, by form and shape.

    Args:
        kind, number: the device.
        info: the model's inputs and outputs.
        most: how many shapes are kept. Further ones run without a graph: memory is not given back by age, since
            ONNX Runtime cannot let go of a graph.
    """

    def __init__(self, kind: str, number: int, info: ModelInfo, most: int) -> None:
        self._kind, self._number, self._info, self._most = kind, number, info, most
        self._kept: dict[Key, _Recorded] = {}
        self._lock = threading.Lock()

    def run(
        self, form: str, session: onnxruntime.InferenceSession, names: Sequence[str], feeds: Feeds
    ) -> list[np.ndarray]:
        """Run feeds in host memory; results are copies in host memory."""
        key: Key = (form, tuple((name, array.shape) for name, array in sorted(feeds.items())))
        with self._lock:
            recorded = self._kept.get(key)
            if recorded is None and len(self._kept) < self._most:
                identity = str(len(self._kept) + 1)
                recorded = self._kept[key] = _Recorded(session, self._kind, self._number, self._info, feeds, identity)
            if recorded is not None:
                return recorded.run(feeds, names)
        results: list[np.ndarray] = session.run(list(names), feeds, _run_options(_NO_GRAPH))
        return results

    def described(self) -> dict[str, Any]:
        """For provenance: the shapes that are kept."""
        shapes = [f"{form} {' '.join('x'.join(map(str, shape)) for _, shape in each)}" for form, each in self._kept]
        return {"most": self._most, "shapes": shapes}


class _Recorded:
    """One shape: its buffers, bound once."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        kind: str,
        number: int,
        info: ModelInfo,
        feeds: Feeds,
        identity: str,
    ) -> None:
        import onnxruntime

        self._session, self._options = session, _run_options(identity)
        self._binding = session.io_binding()
        make = onnxruntime.OrtValue.ortvalue_from_shape_and_type
        self._inputs = {name: make(list(array.shape), array.dtype, kind, number) for name, array in feeds.items()}
        self._outputs = {}
        for name, (shape, dtype) in output_shapes(info, sizes_of(info, feeds)).items():
            self._outputs[name] = make(list(shape), dtype, kind, number)
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, feeds: Feeds, names: Sequence[str]) -> list[np.ndarray]:
        for name, value in self._inputs.items():
            value.update_inplace(np.ascontiguousarray(feeds[name]))
        self._session.run_with_iobinding(self._binding, self._options)
        return [np.array(self._outputs[name].numpy()) for name in names]


def _run_options(identity: str) -> onnxruntime.RunOptions:
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", identity)
    return options
