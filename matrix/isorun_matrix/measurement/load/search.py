"""The search for the highest rate whose latencies are within a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isorun_matrix.measurement.load.figures import Trial

_COARSE = 1.5  # the step of the rate until the bound is between two rates
_FINE = 1.05  # the step from there on
_COARSE_STEPS, _FINE_STEPS = 8, 20


@dataclass(frozen=True)
class Found:
    """The end of a search; the members are those of :class:`LoadFigures`."""

    rate: float
    nearest: Trial
    between: tuple[float, float]


def search(trial: Callable[[float], Trial], start: float, bound: float) -> tuple[Found | None, list[Trial]]:
    """The highest rate whose 99th percentile is within a bound.

    The rate grows or shrinks by half from ``start`` until the bound is between two rates. From there on it goes up by
    5 % where a measurement is within the bound, and down by 5 % where it is not, 20 times. The result is the geometric
    mean of these rates from the first turn on: at that rate, half of the measurements are within the bound (the
    up-and-down method: Dixon and Mood, 1948, https://doi.org/10.1080/01621459.1948.10483254). A percentile near the
    limit differs so much between measurements that one which fails by chance must not decide.

    Args:
        trial: measures at a rate, in requests per second.
        start: the first rate.
        bound: of ``p99_ms``.

    Returns:
        The rate, ``None`` if none is within the bound in 15 steps; and all measurements.
    """
    trials: list[Trial] = []

    def holds(rate: float) -> bool:
        trials.append(trial(rate))
        return _within(trials[-1], bound)

    low = high = start
    if holds(start):
        while holds(high := low * _COARSE):
            low = high
    else:
        while not holds(low := high / _COARSE):
            high = low
            if len(trials) >= _COARSE_STEPS:
                return None, trials
    coarse, middle = len(trials), (low * high) ** 0.5
    steps = [0]
    for _ in range(_FINE_STEPS):
        steps.append(steps[-1] + (1 if holds(middle * _FINE ** steps[-1]) else -1))
    grew = np.diff(steps) > 0
    turn = int(np.argmax(grew != grew[0]))
    found = middle * _FINE ** float(np.mean(steps[turn:]))
    around = [(each.rate or 0.0, each) for each in trials[coarse - 2 :]]
    within = {rate: each for rate, each in around if _within(each, bound)}
    nearest = within[min(within, key=lambda rate: abs(rate - found))]
    ends = [found, max(within), min(rate for rate, each in around if not _within(each, bound))]
    return Found(found, nearest, (min(ends), max(ends))), trials


def _within(trial: Trial, bound: float) -> bool:
    return trial.p99_ms is not None and trial.p99_ms <= bound
