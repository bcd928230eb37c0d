"""The compiled models that concurrent runs use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from isorun.compilation.compiled_model import CompiledModel
from isorun.errors import CacheError, InvalidModel

_logger = logging.getLogger("isorun")


class LaneModels:
    """The models of a plan: the session's own for a run that is alone, and those of the lanes, with fewer threads.

    Args:
        all_threads: the session's own.
        compile_lane: compiles one with fewer threads; ``None`` if all lanes share the session's own.
        lanes: the number of runs at once.
        shared: whether one with fewer threads serves all lanes.
    """

    def __init__(
        self, all_threads: CompiledModel, compile_lane: Callable[[], CompiledModel] | None, lanes: int, *, shared: bool
    ) -> None:
        self.lanes = lanes
        self.all_threads = all_threads
        self._compile = compile_lane if lanes > 1 else None
        self._shared = shared
        self._compiled: dict[int, CompiledModel] = {}
        self._compiling = threading.Lock()

    @property
    def divided(self) -> bool:
        """Whether lanes have models of their own."""
        return self._compile is not None

    def of_lane(self, lane: int) -> CompiledModel:
        """The model of a lane, compiled at its first run; the session's own where the file has been replaced or removed
        since it was opened, which a session outlives."""
        if self._compile is None:
            return self.all_threads
        index = 0 if self._shared else lane
        with self._compiling:
            if index not in self._compiled:
                self.all_threads.check_open()
                try:
                    self._compiled[index] = self._compile()
                except (InvalidModel, CacheError) as error:
                    _logger.warning("overlapping runs share one model from now on: %s", error)
                    self._compiled[index] = self.all_threads
            return self._compiled[index]

    def of_lanes(self) -> list[CompiledModel]:
        """The model of each lane, compiled now if it was not."""
        return [self.of_lane(lane) for lane in range(self.lanes)]

    def all(self) -> list[CompiledModel]:
        """All of them, compiled now if they were not."""
        return list(dict.fromkeys([self.all_threads, *self.of_lanes()]))

    def close(self) -> None:
        """Release those with fewer threads."""
        with self._compiling:
            compiled, self._compiled = self._compiled, {}
        for model in set(compiled.values()) - {self.all_threads}:
            model.close()
