"""A model of two inputs that records its batches, to test the lanes of :mod:`isorun.session` without a runtime."""

import itertools
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from isorun.errors import BackendFailed
from isorun.models.feeds import FeedChecker
from isorun.session.scheduling.call_queue import Batching, Call
from isorun.session.scheduling.collator import Collator
from isorun.session.scheduling.lane_models import LaneModels
from isorun.session.scheduling.lanes import Lanes
from isorun.session.scheduling.metrics import Recorder as Metrics
from isorun.session.scheduling.results import Results
from isorun.types import Feeds, ModelInfo, TensorSpec

INPUTS = tuple(TensorSpec(name, "tensor(int64)", ("batch", "sequence")) for name in ("ids", "mask"))
PADDABLE = ModelInfo(
    INPUTS,
    (TensorSpec("each", "tensor(int64)", ("batch", "sequence")),),
    17,
    mask="mask",
    token_outputs=("each",),
    keeps_padding="",
)
FIXED = replace(PADDABLE, keeps_padding="It reads its padding")
_streams = itertools.count(1)


class Recorder:
    """A model whose output for each token is its id, and which remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.poison = -1
        self.error: type[BackendFailed] = BackendFailed
        self.metrics = Metrics()

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        self.batches.append(feeds["ids"].shape)
        if self.poison in feeds["ids"]:
            raise self.error("poisoned")
        return [feeds["ids"] * (feeds["mask"] != 0)]

    def lanes(self, info: ModelInfo = PADDABLE, *, lanes: int = 1, limit: int = sys.maxsize) -> Lanes:
        """Lanes that run this model."""
        collator = Collator(info, FeedChecker(info, any_mask=True))
        model: Any = self
        return Lanes(LaneModels(model, None, lanes, shared=True), collator, self.metrics, limit=limit)

    @contextmanager
    def opened(self, info: ModelInfo = PADDABLE, **options: Any) -> Iterator[Lanes]:
        """As :meth:`lanes`, closed at the end: what waits is cancelled."""
        lanes = self.lanes(info, **options)
        try:
            yield lanes
        finally:
            lanes.close(cancel=True)

    def map(
        self,
        requests: Any,
        info: ModelInfo = PADDABLE,
        *,
        max_tokens: int = 64,
        max_wait: float = 0.05,
        return_exceptions: bool = False,
    ) -> Results:
        """Requests through lanes of their own, which end when the results are collected."""
        lanes = self.lanes(info)
        return Results(
            requests,
            lanes,
            Call(Batching(max_tokens, max_wait, 4 * max_tokens, next(_streams)), bounded=False, all_threads=True),
            partial(lanes._collator.row, None),
            4 * max_tokens,
            return_exceptions=return_exceptions,
            owner=_Closing(lanes),
        )


class _Closing:
    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def __del__(self) -> None:
        self._lanes.close(join=False)


def put(lanes: Lanes, batching: Batching, *requests: Feeds) -> list[Future[list[Any]]]:
    """Submit requests as one call."""
    rows = [lanes._collator.row(None, feeds) for feeds in requests]
    lanes.put(Call(batching), rows)
    return [row.future for row in rows]


def small(length: int, value: int = 1) -> dict[str, np.ndarray]:
    """A request of one value, without padding."""
    return {"ids": np.full(length, value), "mask": np.ones(length, np.int64)}
