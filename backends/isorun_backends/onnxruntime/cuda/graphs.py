"""CUDA graphs through ONNX Runtime's own option: a shape's launches recorded once, then started as one.

ONNX Runtime records a graph for each number in ``gpu_graph_id`` and plays it when the number comes again. That needs
inputs and outputs at fixed addresses, so each shape has buffers of its own on the device, and one run at a time.

It also keeps graphs, and the handles of CUDA's libraries, for each thread that ever ran the session, and lets go of
none: so all runs are to come from one thread. A run without a number would be recorded as number 0, and played again
with the addresses of then. (Read in ONNX Runtime's source.) Not run on hardware yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.types import Feeds, ModelInfo
from isorun_backends.onnxruntime.cuda.buffers import Buffers, run_options
from isorun_backends.onnxruntime.cuda.packing import KEPT
from isorun_backends.onnxruntime.cuda.pinned import Pinned

if TYPE_CHECKING:
    import onnxruntime

Key = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]


class Graphs:
    """The graphs of one model, by form and shape. To be used by one thread.

    Args:
        kind, number: the device.
        info: the model's inputs and outputs.
        most: how many shapes are kept. Further ones run without a graph: memory is not given back by age, since
            ONNX Runtime cannot let go of a graph.
        pinned: the host's memory for copies; ``None`` for any.
        stream: what the sessions run on; ``None`` where it is not known.
    """

    def __init__(
        self, kind: str, number: int, info: ModelInfo, most: int, pinned: Pinned | None, stream: int | None
    ) -> None:
        self._kind, self._number, self._info, self._most = kind, number, info, most
        self._pinned, self._stream = pinned, stream
        self._kept: dict[Key, Buffers] = {}

    def run(
        self, form: str, session: onnxruntime.InferenceSession, names: Sequence[str], feeds: Feeds
    ) -> list[np.ndarray]:
        """Run feeds in host memory; results are copies in host memory."""
        recorded = self.recorded(form, session, feeds)
        if recorded is not None:
            return recorded.run(feeds, names)
        results: list[np.ndarray] = session.run(list(names), feeds, run_options())
        return results

    def recorded(self, form: str, session: onnxruntime.InferenceSession, feeds: Feeds) -> Buffers | None:
        """What runs feeds of this shape as a graph; ``None`` where as many shapes are kept as may be."""
        key: Key = (form, tuple((name, array.shape) for name, array in sorted(feeds.items())))
        if key not in self._kept and len(self._kept) < self._most:
            self._kept[key] = Buffers(
                *(session, self._kind, self._number, self._info, feeds),
                identity=str(len(self._kept) + 1),
                pinned=self._pinned,
                stream=self._stream,
            )
        return self._kept.get(key)

    def described(self) -> dict[str, Any]:
        """For provenance: the shapes that are kept."""
        own = {spec.name for spec in self._info.inputs}
        found = []
        for form, shapes in self._kept:
            sizes = " ".join("x".join(map(str, shape)) for name, shape in shapes if name in own)
            tokens = dict(shapes).get(KEPT)
            found.append(f"{form} {sizes}" + (f", {tokens[1]} tokens" if tokens else ""))
        return {"most": self._most, "shapes": found}
