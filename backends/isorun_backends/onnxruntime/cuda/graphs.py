"""CUDA graphs through ONNX Runtime's own option: the launches of a shape recorded once, then replayed as one.

ONNX Runtime records a graph for each number in ``gpu_graph_id`` and replays it for the same number. That needs inputs
and outputs at fixed addresses, so each shape has its own device buffers, and one run at a time.

ONNX Runtime also keeps graphs and library handles for every thread that ever ran the session and never releases them,
so all runs come from one thread. A run without a number would be recorded as number 0, and replayed with the addresses
of that time. (Read in ONNX Runtime's source.)

A run that fails is recorded nevertheless: from the third on, runs of that number replay that and raise nothing
(1.31.1, on an H100). So a number whose run has failed is not used again, and its shape runs without a graph.

While a graph is recorded, no other thread may call CUDA: :mod:`isorun_backends.nvidia.recording`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import Feeds, ModelInfo
from isorun_backends.nvidia import recording
from isorun_backends.nvidia.device_memory import DeviceMemory
from isorun_backends.onnxruntime.cuda.device_buffers import DeviceBuffers, run_options
from isorun_backends.onnxruntime.cuda.packing import KEPT

if TYPE_CHECKING:
    import onnxruntime

_RECORDED_AFTER = 3
"""Runs of a shape after which its graph is recorded."""
Key = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]


class Graphs:
    """The graphs of one model, by form and shape, up to a limit. Further shapes run without a graph: ONNX Runtime
    cannot release one. To be used by one thread."""

    def __init__(self, kind: str, index: int, info: ModelInfo, limit: int, memory: DeviceMemory, stream: int) -> None:
        self._kind, self._index, self._info, self._limit = kind, index, info, limit
        self._memory, self._stream = memory, stream
        self._buffers: dict[Key, DeviceBuffers] = {}
        self._failed: set[Key] = set()
        self._runs: Counter[Key] = Counter()

    def run(
        self, form: str, session: onnxruntime.InferenceSession, names: Sequence[str], feeds: Feeds
    ) -> list[np.ndarray]:
        """Run feeds in host memory; the results are copies there."""
        key = _key(form, feeds)
        self._runs[key] += 1
        with recording.running() if self._runs[key] > _RECORDED_AFTER else recording.recording():
            return self._run(key, form, session, names, feeds)

    def _run(
        self, key: Key, form: str, session: onnxruntime.InferenceSession, names: Sequence[str], feeds: Feeds
    ) -> list[np.ndarray]:
        buffers = self.buffers(form, session, feeds)
        if buffers is not None:
            try:
                return buffers.run(feeds, names)
            except BaseException:
                self._failed.add(key)
                raise
        results: list[np.ndarray] = session.run(list(names), feeds, run_options())
        return results

    def buffers(self, form: str, session: onnxruntime.InferenceSession, feeds: Feeds) -> DeviceBuffers | None:
        """The buffers that run feeds of this shape as a graph; ``None`` after a failed run, or beyond the limit."""
        key = _key(form, feeds)
        if key in self._failed:
            return None
        if key not in self._buffers and len(self._buffers) < self._limit:
            self._buffers[key] = DeviceBuffers(
                *(session, self._kind, self._index, self._info, feeds, self._memory, self._stream),
                graph_id=str(len(self._buffers) + 1),
            )
        return self._buffers.get(key)

    def described(self) -> dict[str, Any]:
        """The limit and the recorded shapes, for provenance."""
        inputs = {spec.name for spec in self._info.inputs}
        described = []
        for form, shapes in (key for key in self._buffers if key not in self._failed):
            sizes = " ".join("x".join(map(str, shape)) for name, shape in shapes if name in inputs)
            tokens = dict(shapes).get(KEPT)
            described.append(f"{form} {sizes}" + (f", {tokens[1]} tokens" if tokens else ""))
        return {"limit": self._limit, "shapes": described}


def _key(form: str, feeds: Feeds) -> Key:
    return form, tuple((name, array.shape) for name, array in sorted(feeds.items()))
