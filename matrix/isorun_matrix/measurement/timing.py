"""How long each run of a session takes, once it has warmed up."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from isorun import Session
from isorun.tuning.timing import TimingBudget, interleave, without_gc
from isorun.types import Feeds

_NS_PER_S = 1_000_000_000
_WINDOW = 5  # minimum runs in a window of the warm-up
_STEADY = 0.98  # of the median of the window before: below it, runs are still getting faster
_WINDOWS = 20  # of warm-up at most, where no time is given
_BLOCKS = 3  # of repeated and of varied feeds, alternating
_LONGEST = 20  # runs in such a block


@dataclass(frozen=True)
class WarmUp:
    """The runs before the measured ones.

    Attributes:
        steady: whether they had stopped getting faster.
        typical: the median time of the last ones, in nanoseconds; 0 without any.
    """

    runs: int
    steady: bool
    typical: float


def warm_up(session: Session, feeds: Sequence[Feeds], minimum: int, seconds: float | None) -> WarmUp:
    """Run without measuring until the times are steady.

    They are steady when the median of a window of runs is at least 98 % of that of the window before. A window is the
    smallest number of passes through all feeds that has five runs.

    Args:
        feeds: one or more sets, used in turn.
        minimum: how many runs at least, unless the time ends; 0 for no warm-up.
        seconds: how long at most; ``None`` for at most 20 windows.
    """
    if minimum == 0:
        return WarmUp(0, steady=False, typical=0.0)
    window = len(feeds) * -(-_WINDOW // len(feeds))
    end = None if seconds is None else perf_counter_ns() + int(seconds * _NS_PER_S)
    times: list[int] = []
    for request in itertools.cycle(feeds):
        now = perf_counter_ns()
        if len(times) >= max(minimum, 2 * window) and len(times) % window == 0:
            if median(times[-window:]) >= _STEADY * median(times[-2 * window : -window]):
                return WarmUp(len(times), steady=True, typical=median(times[-window:]))
            if end is None and len(times) >= _WINDOWS * window:
                break
        if end is not None and now >= end:
            break
        session.run(None, request)
        times.append(perf_counter_ns() - now)
    return WarmUp(len(times), steady=False, typical=median(times[-window:]) if times else 0.0)


class TimedRuns:
    """The time of each call of ``session.run`` for all outputs, with Python's cyclic garbage collector off.

    Args:
        feeds: one or more sets, used in turn.
        seed: selects the runs whose outputs are kept, each run of a set of feeds with the same probability.

    Attributes:
        kept: for each set of feeds, by its index, a random run of it, and what that run returned.
    """

    def __init__(self, session: Session, feeds: Sequence[Feeds], seed: int) -> None:
        self.kept: dict[int, tuple[int, list[Any]]] = {}
        self._session = session
        self._feeds = feeds
        self._chance = random.Random(seed)
        self._samples: list[int] = []

    @property
    def samples(self) -> np.ndarray:
        """(runs,), int64, nanoseconds, in order. Releasing the outputs is not included."""
        return np.array(self._samples, dtype=np.int64)

    def measure(self, minimum: int, seconds: float = 0.0) -> None:
        """Run so many times, and until so many seconds have passed."""
        end_of_runs = len(self._samples) + minimum
        with without_gc():
            deadline = perf_counter_ns() + int(seconds * _NS_PER_S)
            while True:
                index = len(self._samples) % len(self._feeds)
                start = perf_counter_ns()
                outputs = self._session.run(None, self._feeds[index])
                end = perf_counter_ns()
                if _keeps(self._chance, len(self._samples), len(self._feeds)):
                    self.kept[index] = len(self._samples), outputs
                del outputs
                self._samples.append(end - start)
                if len(self._samples) >= end_of_runs and end >= deadline:
                    break

    def checkpoint(self) -> Callable[[], None]:
        """A function that rolls back to this moment: the runs from now on are forgotten."""
        count, kept, state = len(self._samples), dict(self.kept), self._chance.getstate()

        def roll_back() -> None:
            del self._samples[count:]
            self.kept = dict(kept)
            self._chance.setstate(state)

        return roll_back


def kept_runs(seed: int, runs: int, feeds: int) -> dict[int, int]:
    """The runs whose outputs :class:`TimedRuns` keeps, by the index of their feeds."""
    chance = random.Random(seed)
    return {run % feeds: run for run in range(runs) if _keeps(chance, run, feeds)}


def _keeps(chance: random.Random, run: int, feeds: int) -> bool:
    """Whether a run replaces the one that was kept of its feeds: the n-th with a probability of 1/n."""
    return chance.random() * (run // feeds + 1) < 1


def repeated_and_varied(
    session: Session, repeated: Feeds, varied: Sequence[Feeds], typical: float, seconds: float
) -> tuple[float, float]:
    """The median times of runs with one set of feeds again and again, and with sets that differ, in nanoseconds.

    A runtime that answers from a cache is faster where feeds repeat.

    Args:
        repeated: the feeds that are repeated.
        varied: feeds of the same shapes and lengths, used in turn.
        typical: the time of a run, in nanoseconds.
        seconds: about how long to take.
    """
    length = min(max(2, int(seconds * _NS_PER_S / max(typical, 1)) // (2 * _BLOCKS)), _LONGEST)

    def block(runs: TimedRuns) -> float:
        runs.measure(length)
        return float(np.median(runs.samples[-length + 1 :]))  # the first repeats nothing

    times, failed = interleave(
        {
            "repeated": partial(block, TimedRuns(session, [repeated], 0)),
            "varied": partial(block, TimedRuns(session, varied, 0)),
        },
        TimingBudget(_BLOCKS, seconds),
    )
    for error in failed.values():
        raise error
    return median(times["repeated"]), median(times["varied"])
