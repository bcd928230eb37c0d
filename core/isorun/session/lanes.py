"""Runs side by side: as many at once as the machine serves best, each with its share of the cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isorun.compilation.compiled_model import CompiledModel
from isorun.session.metrics import Recorder
from isorun.types import Feeds


class Lanes:
    """The compiled models that scheduled runs take turns on.

    A run that is alone gets the session's own model, with all its threads. Runs that overlap get narrower ones.

    Args:
        wide: the session's own model.
        compile_narrow: compiles it with fewer threads; ``None`` if all lanes share the wide one.
        shared: whether a single narrow model serves all lanes.
        lanes: the number of runs at once.
        recorder: counts runs.
        mask: the model's mask input.
    """

    def __init__(
        self,
        wide: CompiledModel,
        compile_narrow: Callable[[], CompiledModel] | None,
        lanes: int,
        recorder: Recorder,
        *,
        shared: bool,
        mask: str | None,
    ) -> None:
        self.count = lanes
        self._wide = wide
        self._compile = compile_narrow if lanes > 1 else None
        self._shared = shared
        self._recorder = recorder
        self._mask = mask
        self._idle = list(range(lanes))
        self._narrow: dict[int, CompiledModel] = {}
        self._compiling = threading.Lock()
        self._changed = threading.Condition()

    def run(self, output_names: Sequence[str], feeds: Feeds, wide: bool | None = None) -> list[Any]:
        """Run on the next free lane. Feeds have been validated.

        Args:
            output_names, feeds: what to run.
            wide: whether to use all threads; ``None`` if this run is alone and no other waits.

        Raises:
            IsorunError: the session is closed.
            BackendFailed: the runtime failed.
        """
        with self._changed:
            while not self._idle:
                self._changed.wait()
            if wide is None:
                wide = len(self._idle) == self.count and not self._recorder.waiting
            lane = self._idle.pop()
        try:
            model = self._wide if wide else self._model(lane)
            rows, tokens, padding = self._sizes(feeds)
            with self._recorder.run(rows, tokens, padding):
                return model.run(output_names, feeds)
        finally:
            with self._changed:
                self._idle.append(lane)
                self._changed.notify()

    def models(self) -> list[CompiledModel]:
        """All of them, compiled now if they were not."""
        return list(dict.fromkeys([self._wide, *self.of_overlapping_runs()]))

    def of_overlapping_runs(self) -> list[CompiledModel]:
        """The model of each lane, compiled now if it was not."""
        return [self._model(lane) for lane in range(self.count)]

    def close(self) -> None:
        """Release the narrow models."""
        with self._compiling:
            narrow, self._narrow = self._narrow, {}
        for model in narrow.values():
            model.close()

    def _model(self, lane: int) -> CompiledModel:
        if self._compile is None:
            return self._wide
        index = 0 if self._shared else lane
        with self._compiling:
            if index not in self._narrow:
                self._wide.check_open()
                self._narrow[index] = self._compile()
            return self._narrow[index]

    def _sizes(self, feeds: Feeds) -> tuple[int, int, int]:
        """Rows, real tokens and padding."""
        mask = feeds.get(self._mask) if self._mask is not None else None
        if isinstance(mask, np.ndarray) and mask.ndim == 2:
            tokens = int(np.count_nonzero(mask))
            return len(mask), tokens, mask.size - tokens
        arrays = [value for value in feeds.values() if isinstance(value, np.ndarray) and value.ndim]
        largest = max(arrays, key=lambda array: array.ndim, default=None)
        return (1, 0, 0) if largest is None else (len(largest), int(np.prod(largest.shape[:2])), 0)
