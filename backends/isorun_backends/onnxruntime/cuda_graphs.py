"""CUDA graphs through ONNX Runtime's own option: a shape's launches recorded once, then started as one.

ONNX Runtime records a graph for each number in ``gpu_graph_id`` and plays it when the number comes again. That needs
inputs and outputs at fixed addresses, so each shape has buffers of its own on the device, and one run at a time.

It also keeps graphs, and the handles of CUDA's libraries, for each thread that ever ran the session, and lets go of
none: so all runs are to come from one thread. A run without a number would be recorded as number 0, and played again
with the addresses of then. (Read in ONNX Runtime's source.) Not run on hardware yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.types import Feeds, ModelInfo
from isorun_backends import cuda_driver
from isorun_backends.onnxruntime.pinned import Pinned
from isorun_backends.output_shapes import output_shapes, sizes_of

if TYPE_CHECKING:
    import onnxruntime

_NO_GRAPH = "-1"

Key = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]


class Graphs:
    """The graphs of one model, by form and shape. To be used by one thread.

    Args:
        kind, number: the device.
        info: the model's inputs and outputs.
        most: how many shapes are kept. Further ones run without a graph: memory is not given back by age, since
            ONNX Runtime cannot let go of a graph.
        pinned: the host's memory for copies; ``None`` for any.
    """

    def __init__(self, kind: str, number: int, info: ModelInfo, most: int, pinned: Pinned | None) -> None:
        self._kind, self._number, self._info, self._most, self._pinned = kind, number, info, most, pinned
        self._kept: dict[Key, _Recorded] = {}

    def run(
        self, form: str, session: onnxruntime.InferenceSession, names: Sequence[str], feeds: Feeds
    ) -> list[np.ndarray]:
        """Run feeds in host memory; results are copies in host memory."""
        recorded = self._recorded(form, session, feeds)
        if recorded is not None:
            return recorded.run(feeds, names)
        results: list[np.ndarray] = session.run(list(names), feeds, without_graph())
        return results

    def times(
        self, form: str, session: onnxruntime.InferenceSession, feeds: Feeds, stream: int, runs: int
    ) -> np.ndarray | None:
        """Milliseconds on the device, copies not counted; ``None`` where this shape has no graph."""
        recorded = self._recorded(form, session, feeds)
        if recorded is None:
            return None
        recorded.run(feeds, ())  # the first records it
        return cuda_driver.times(stream, self._number, recorded.play, runs)

    def _recorded(self, form: str, session: onnxruntime.InferenceSession, feeds: Feeds) -> _Recorded | None:
        key: Key = (form, tuple((name, array.shape) for name, array in sorted(feeds.items())))
        if key not in self._kept and len(self._kept) < self._most:
            self._kept[key] = _Recorded(session, self, feeds, str(len(self._kept) + 1))
        return self._kept.get(key)

    def described(self) -> dict[str, Any]:
        """For provenance: the shapes that are kept."""
        shapes = [f"{form} {' '.join('x'.join(map(str, shape)) for _, shape in each)}" for form, each in self._kept]
        return {"most": self._most, "shapes": shapes}


class _Recorded:
    """One shape: its buffers, bound once."""

    def __init__(self, session: onnxruntime.InferenceSession, of: Graphs, feeds: Feeds, identity: str) -> None:
        import onnxruntime

        self._session, self._options, self._pinned = session, _run_options(identity), of._pinned
        self._binding = session.io_binding()
        make = partial(onnxruntime.OrtValue.ortvalue_from_shape_and_type, device_type=of._kind, device_id=of._number)
        self._inputs = {name: make(list(array.shape), array.dtype) for name, array in feeds.items()}
        self._outputs = {}
        for name, (shape, dtype) in output_shapes(of._info, sizes_of(of._info, feeds)).items():
            self._outputs[name] = (make(list(shape), dtype), shape, dtype)
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, (value, _, _) in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, feeds: Feeds, names: Sequence[str]) -> list[np.ndarray]:
        for name, value in self._inputs.items():
            value.update_inplace(np.ascontiguousarray(feeds[name]))
        self.play()
        return [self._fetch(*self._outputs[name]) for name in names]

    def play(self) -> None:
        """Run on what the buffers hold. ONNX Runtime waits for its stream before it returns."""
        self._session.run_with_iobinding(self._binding, self._options)

    def _fetch(self, value: onnxruntime.OrtValue, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        if self._pinned is None:
            return np.array(value.numpy())
        return self._pinned.fetch(value.data_ptr(), shape, dtype)


def without_graph() -> onnxruntime.RunOptions:
    """For a run that is not to be recorded, in a session that records."""
    return _run_options(_NO_GRAPH)


def _run_options(identity: str) -> onnxruntime.RunOptions:
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", identity)
    return options
