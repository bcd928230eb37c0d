"""Requests, and the calls that they are part of."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from isorun.system import threads
from isorun.types import Feeds

_ALONE = ("alone",)
_logger = logging.getLogger("isorun")


class Answer(Future[list[Any]]):
    """The future of a request. What a callback of it raises ends no thread that others wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = threads.Condition()  # a caller that is interrupted must not stop the thread that answers

    def add_done_callback(self, fn: Callable[[Future[list[Any]]], object]) -> None:
        """As of any future; ``SystemExit`` in ``fn``, too, is logged and not raised, except on the main thread."""
        super().add_done_callback(partial(_call_back, fn))


def _call_back(fn: Callable[[Future[list[Any]]], object], future: Future[list[Any]]) -> None:
    try:
        fn(future)
    except BaseException:
        if threading.current_thread() is threading.main_thread():  # where Ctrl-C may be the cause
            raise
        _logger.exception("a callback of a result raised an exception")


@dataclass(slots=True, eq=False)
class Request:
    """One request, validated."""

    outputs: Sequence[str]
    feeds: Feeds
    kind: tuple[Any, ...] = _ALONE  # requests of one kind can share a batch
    length: int = 0  # 0 for a request that never shares a batch
    rows: int = 1
    keep_axis: bool = True  # whether results have a batch axis
    arrived: float = field(default_factory=time.monotonic)
    future: Answer = field(default_factory=Answer)
    call: Call = field(init=False)
    number: int = field(init=False, default=-1)
    turn: float = field(init=False)  # as of :class:`CallQueue`


class Batching(NamedTuple):
    """How requests share batches. Those of calls with equal values may share one.

    Attributes:
        max_tokens: the maximum of the sum of the lengths in a batch, in order of arrival; 0 if each request runs alone.
        max_wait: the maximum time in seconds that a request waits for others.
        enough: the number of waiting tokens at which a batch starts at once.
        stream: 0, or the number of a stream, whose batches hold its own requests only: those of similar length, as
            long as rows times the longest row do not exceed ``max_tokens``.
    """

    max_tokens: int = 0
    max_wait: float = 0.0
    enough: int = 0
    stream: int = 0


Turn = tuple[float, int, "Call"]
"""The time, the number of a request, and its call."""


class Call:
    """One caller's requests.

    Args:
        batching: how they share batches.
        bounded: they are rejected if too many wait; otherwise the caller limits their number.
        all_threads: whether they run on all threads; ``None``: if they are alone.

    Attributes:
        waiting: by number, in order of arrival.
        hurry: no further request is expected soon: do not wait for ``max_wait``.
        abandoned: nobody waits for an answer any more.
        taken, running: batches that were taken from it and have not ended, and those of them that run.
        last_turn: when a stream's last batch was taken.
    """

    def __init__(self, batching: Batching, *, bounded: bool = True, all_threads: bool | None = None) -> None:
        self.batching = batching
        self.bounded = bounded
        self.all_threads = all_threads
        self.waiting: dict[int, Request] = {}
        self.hurry = self.abandoned = False
        self.taken = self.running = 0
        self.last_turn = 0.0

    def turn(self) -> Turn:
        """The turn of its oldest request: it orders calls."""
        return self.turn_of(next(iter(self.waiting.values())))

    def turn_of(self, request: Request) -> Turn:
        """Its turn while a request is its oldest."""
        return max(request.turn, self.last_turn), request.number, self

    def due(self) -> float:
        """The time until which its oldest request may wait for others."""
        return next(iter(self.waiting.values())).arrived + self.batching.max_wait
