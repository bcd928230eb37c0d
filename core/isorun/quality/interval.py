"""A mean over queries with its confidence interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and the interval that holds the mean over all queries like these with 95 % confidence.

    Attributes:
        value: the mean.
        low, high: the ends of the interval.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def mean(figures: npt.NDArray[np.floating]) -> Interval:
    """The mean of one figure per query, between 0 and 1, with the percentile bootstrap over queries.

    The interval reaches down at least as far as queries in which the figure is 0 could remain unseen with a probability
    of 5 %: a bootstrap draws from what was seen. Where all figures are equal, it reaches up likewise.

    Args:
        figures: (queries,), at least one.
    """
    from scipy import stats

    value, unseen = float(figures.mean()), _unseen(len(figures))
    if np.ptp(figures) == 0:
        return Interval(value, value * (1 - unseen), value + (1 - value) * unseen)
    ends = stats.bootstrap(
        (figures,), np.mean, confidence_level=CONFIDENCE, n_resamples=_RESAMPLES, method="percentile", rng=0
    ).confidence_interval
    return Interval(value, min(float(ends.low), value * (1 - unseen)), float(ends.high))


def ratio(
    count: int, value: Callable[[npt.NDArray[np.intp]], float], base: Callable[[npt.NDArray[np.intp]], float]
) -> Interval:
    """The ratio of two figures of the same labels, with the percentile bootstrap over labels.

    The interval reaches down at least as far as :func:`mean` says.

    Args:
        count: how many labels there are.
        value, base: the figures of some of the labels, by their indices.
    """
    drawn = np.random.default_rng(0)
    whole = np.arange(count)
    resamples = (drawn.integers(0, count, count) for _ in range(_RESAMPLES))
    ratios = np.array([value(rows) / divisor for rows in resamples if (divisor := base(rows)) > 0])
    point = value(whole) / base(whole)
    if np.ptp(ratios) == 0:
        return Interval(point, point * (1 - _unseen(count)), point)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Interval(point, min(float(low), point * (1 - _unseen(count))), float(high))


def _unseen(count: int) -> float:
    """The largest share that so many queries miss with a probability of 5 %."""
    return float(1 - (1 - CONFIDENCE) ** (1 / count))
