"""The search for the highest rate whose latencies are within a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

import numpy as np
import numpy.typing as npt

from isorun_matrix.measurement.load.figures import Trial
from isorun_matrix.spec.load_scenario import TRIALS

_LARGEST, _LEAST = log(1.5), log(1.07)  # the step of the rate's logarithm
_HARDLY = 1 / 20  # of the first rate: requests hardly meet
_NEAR = log(1.3)  # what counts for the result
_FARTHEST = 2  # times the bound
_STEPS, _LEAST_SLOPE, _TINY = 4, 0.5, 1e-12
_RESAMPLES, _WIDER = 1000, 1.5


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
    https://doi.org/10.1121/1.1910407). The result is where a line by least squares, through the percentiles at rates
    within 30 % of it, meets the bound. Both are logarithms. A percentile counts as at most twice the bound and at least
    half of it, so that a stall of the machine does not decide.

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
    while len(trials) < TRIALS:
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
    ratios = [np.inf if trial.p99_ms is None else trial.p99_ms / bound for trial in trials]
    beyond = np.log(np.clip(ratios, 1 / _FARTHEST, _FARTHEST))
    crossing, low, high = _limit(np.array(rates), beyond, np.random.default_rng(seed))
    nearest = min(np.flatnonzero(held), key=lambda index: abs(rates[index] - crossing))
    return Found(exp(crossing), trials[nearest], (exp(low), exp(high)))


def _limit(
    rates: npt.NDArray[np.float64], beyond: npt.NDArray[np.float64], rng: np.random.Generator
) -> tuple[float, float, float]:
    """The limit in logarithms, and an interval: the middle 95 % of resamples, 1.5 times as wide.

    Resamples of so few measurements vary too little: in simulations, 89 to 91 % of their intervals have the limit, and
    96 to 98 % of the wider ones.
    """
    number = len(rates)
    crossing = _crossing(rates, beyond, np.ones((1, number)))[0]
    resampled = _crossing(rates, beyond, rng.multinomial(number, np.full(number, 1 / number), _RESAMPLES))
    low, high = crossing + _WIDER * (np.quantile(resampled, [0.025, 0.975]) - crossing)
    return float(crossing), float(min(crossing, low)), float(max(crossing, high))


def _crossing(
    rates: npt.NDArray[np.float64], beyond: npt.NDArray[np.float64], counts: npt.NDArray[np.float64 | np.int64]
) -> npt.NDArray[np.float64]:
    """Where a line through the measurements near that place meets the bound.

    Args:
        rates: (n,), logarithms.
        beyond: (n,), logarithms of the percentile over the bound.
        counts: (r, n), how often each measurement counts.

    Returns:
        (r,), logarithms of rates.
    """
    at = np.full(len(counts), np.median(rates[len(rates) // 2 :]))
    for _ in range(_STEPS):
        away = rates - at[:, None]
        weights = counts * (np.abs(away) <= _NEAR)
        total = np.maximum(1, weights.sum(axis=1))
        mean, mean_beyond = (weights * away).sum(axis=1) / total, (weights * beyond).sum(axis=1) / total
        centred = away - mean[:, None]
        slope = (weights * centred * beyond).sum(axis=1) / np.maximum(_TINY, (weights * centred**2).sum(axis=1))
        at = at + np.clip(mean - mean_beyond / np.maximum(_LEAST_SLOPE, slope), -_NEAR, _NEAR)
    return at
