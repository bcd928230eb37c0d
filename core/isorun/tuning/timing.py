"""Candidates timed in alternating turns: what slows down the machine for a while slows down all that are compared."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple, TypeVar

from isorun.errors import BackendFailed, InvalidFeeds, IsorunError
from isorun.system.disturbance import scheduled
from isorun.system.process_usage import family

K = TypeVar("K")

_MAX_SPIN = 0.3  # seconds
_POLL = 0.005  # seconds
_ASLEEP = 2 * 10**6  # nanoseconds of CPU time between two polls: what polling itself takes
_MISTAKE = 0.05  # maximum probability that the fastest candidate is dropped


class TimingBudget(NamedTuple):
    """How long to measure.

    Attributes:
        rounds: the maximum number of rounds; every candidate that can still win has a turn in each.
        seconds: in all, with what is compiled meanwhile. A quarter remains for the rounds, and the first always runs.
    """

    rounds: int
    seconds: float


def interleave(
    turns: Mapping[K, Callable[[], float]], budget: TimingBudget
) -> tuple[dict[K, list[float]], dict[K, IsorunError]]:
    """Time candidates in alternating turns, after a turn each in which runtimes compile what shapes need. One that is
    shown to be slower than another has no further turns; the fastest is one of them in 5 % of cases at most.

    Args:
        turns: measures a candidate once; returns seconds for some unit of work, the same for all.
        budget: how long.

    Returns:
        The seconds of each candidate, by round, and why candidates failed: ``InvalidFeeds`` if a backend has no
        engine for the shape.
    """
    times: dict[K, list[float]] = {key: [] for key in turns}
    failed: dict[K, IsorunError] = {}
    processes, end = family(), time.perf_counter() + budget.seconds
    for number in range(budget.rounds + 1):
        if number == 1:
            end = max(end, time.perf_counter() + budget.seconds / 4)
        elif time.perf_counter() >= end and number:
            break
        contenders = [key for key in times if not _is_beaten(times, key)]
        for key in contenders if number % 2 == 0 else contenders[::-1]:
            settle(processes)
            try:
                seconds = turns[key]()
            except (BackendFailed, InvalidFeeds) as error:
                failed[key] = error
                del times[key]
            else:
                times[key] += [seconds] if number else []
    return times, failed


def slowdowns(times: Mapping[K, Sequence[float]]) -> dict[K, float]:
    """How many times as long as the fastest candidate each one took: the median over the rounds that both had.

    A candidate is no slower than the fastest if this is at most the factor that a caller accepts.
    """
    return {key: median(_ratios(times, key)) for key in times}


def _is_beaten(times: Mapping[K, Sequence[float]], key: K) -> bool:
    """Whether all turns of a candidate were slower than all turns of another one in the same rounds.

    Of two equal candidates with n turns each, chance makes one of them so with a probability of 1 / C(2n, n), whatever
    the distribution (the exact test of Mann and Whitney; Bonferroni for the other candidates). More rounds do not add
    to it: what is separated after them was separated before.
    """
    mine = times[key]
    chance = (len(times) - 1) / math.comb(2 * len(mine), len(mine))
    rivals = (taken[: len(mine)] for name, taken in times.items() if name != key and len(taken) >= len(mine))
    return chance <= _MISTAKE and any(min(mine) > max(taken) for taken in rivals)


def _ratios(times: Mapping[K, Sequence[float]], key: K) -> list[float]:
    """By round, to the fastest candidate of those with the most rounds: others had different conditions."""
    rounds = max(map(len, times.values()))
    fastest = min((taken for taken in times.values() if len(taken) == rounds), key=lambda taken: median(taken or [0]))
    return [mine / best for mine, best in zip(times[key], fastest, strict=False)]


def settle(processes: Sequence[int]) -> None:
    """Wait, for 0.3 s at most, until threads that spin after a run sleep: they would disturb the next turn.

    Args:
        processes: this one and its descendants.
    """
    ran, end = scheduled(processes).ran, time.perf_counter() + _MAX_SPIN
    while ran is not None and time.perf_counter() < end:
        time.sleep(_POLL)
        before, ran = ran, scheduled(processes).ran
        if ran is None or ran - before < _ASLEEP:
            break


@contextmanager
def without_gc() -> Iterator[None]:
    """Python's cyclic garbage collector is off in the block."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
