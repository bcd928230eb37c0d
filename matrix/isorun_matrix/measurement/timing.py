"""How long each run of a session takes."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np

from isorun import Session
from isorun.types import Feeds

_NS_PER_S = 1_000_000_000


def warm_up(session: Session, feeds: Sequence[Feeds], runs: int, seconds: float | None) -> int:
    """Run without measuring, ``runs`` times or until ``seconds`` have passed; returns the number of runs."""
    deadline = None if seconds is None else perf_counter_ns() + int(seconds * _NS_PER_S)
    for done, given in zip(range(runs), itertools.cycle(feeds), strict=False):
        if deadline is not None and perf_counter_ns() >= deadline:
            return done
        session.run(None, given)
    return runs


def latencies(session: Session, feeds: Sequence[Feeds], repetitions: int | None, seconds: float | None) -> np.ndarray:
    """The time of each call of ``session.run`` for all outputs, with Python's cyclic garbage collector off.

    Args:
        session: the session to measure.
        feeds: one or more sets, used in turn.
        repetitions: how many runs; ``None`` for as many as ``seconds`` allow, but each set of feeds at least once.
        seconds: how long.

    Returns:
        (runs,), int64, nanoseconds. Releasing the outputs is not included.
    """
    minimum = len(feeds) if repetitions is None else repetitions
    deadline = perf_counter_ns() + int((seconds or 0) * _NS_PER_S)
    samples: list[int] = []
    gc.collect()
    gc.disable()
    try:
        for given in itertools.cycle(feeds):
            start = perf_counter_ns()
            outputs = session.run(None, given)
            end = perf_counter_ns()
            del outputs
            samples.append(end - start)
            if len(samples) >= minimum and (repetitions is not None or end >= deadline):
                break
    finally:
        gc.enable()
    return np.array(samples, dtype=np.int64)
