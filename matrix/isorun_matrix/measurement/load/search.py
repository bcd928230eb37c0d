"""The search for the highest rate whose latencies are within a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

import numpy as np
import numpy.typing as npt

from isorun_matrix.measurement.load.figures import Trial

_TRIALS = 24
_LARGEST, _LEAST = log(1.5), log(1.07)  # the step of the rate's logarithm
_HARDLY = 1 / 20  # of the first rate: requests hardly meet
_RESAMPLES = 1000


@dataclass(frozen=True)
class Found:
    """The end of a search; the members are those of :class:`~.figures.LoadFigures`."""

    rate: float
    nearest: Trial
    between: tuple[float, float]


def search(trial: Callable[[float], Trial], start: float, bound: float, seed: int) -> Found | None:
    """The highest rate whose 99th percentile is within a bound.

    A percentile near the limit differs so much between measurements that none of them alone may decide. The rate goes
    up where a measurement is within the bound and down where it is not, 24 times. The step is half of the rate at
    first, half as large after each turn, but at least 7 %, and twice as large again from the third step in one
    direction on (parameter estimation by sequential testing: Taylor and Creelman, 1967,
    https://doi.org/10.1121/1.1910407). The result is the rate with the least sum of distances, in logarithms, to the
    measurements that contradict it: those within the bound at a higher rate, and those beyond it at a lower one.

    Args:
        trial: measures at a rate, in requests per second.
        start: the first rate.
        bound: of ``p99_ms``.
        seed: of the resamples.

    Returns:
        The rate; ``None`` if none is within the bound where requests hardly meet.
    """
    trials: list[Trial] = []
    rates: list[float] = []
    held: list[bool] = []
    rate, step, same = log(start), _LARGEST, 0
    while len(trials) < _TRIALS:
        trials.append(trial(exp(rate)))
        p99 = trials[-1].p99_ms
        rates.append(rate)
        held.append(p99 is not None and p99 <= bound)
        if not any(held) and rate < log(start * _HARDLY):
            return None
        if held[-1:] == held[-2:-1]:
            same += 1
            step = min(_LARGEST, step * 2) if same >= 2 else step
        elif len(held) > 1:
            same, step = 0, max(_LEAST, step / 2)
        rate += step if held[-1] else -step
    found, low, high = _limit(np.array(rates), np.array(held), np.random.default_rng(seed))
    nearest = min(np.flatnonzero(held), key=lambda index: abs(rates[index] - found))
    return Found(exp(found), trials[nearest], (exp(low), exp(high)))


def _limit(
    rates: npt.NDArray[np.float64], held: npt.NDArray[np.bool_], rng: np.random.Generator
) -> tuple[float, float, float]:
    """The limit in logarithms, and an interval: the middle 95 % of resamples, and the smallest step on both sides.

    Resamples alone say too little of so few measurements on a grid of rates: in simulations, 68 to 91 % of their
    intervals have the limit.
    """
    distinct = np.unique(rates)
    candidates = np.concatenate([distinct, (distinct[1:] + distinct[:-1]) / 2])
    beyond = rates - candidates[:, None]
    contradictions = np.maximum(0.0, np.where(held, beyond, -beyond))

    def limit(counts: npt.NDArray[np.int64]) -> float:
        sums = contradictions @ counts
        return float(candidates[sums <= sums.min() + 1e-9].mean())

    number = len(rates)
    found = limit(np.ones(number, np.int64))
    resampled = [limit(counts) for counts in rng.multinomial(number, np.full(number, 1 / number), _RESAMPLES)]
    low, high = np.quantile(resampled, [0.025, 0.975])
    return found, min(found, float(low)) - _LEAST, max(found, float(high)) + _LEAST
