"""A mean over queries with its confidence interval."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    """The mean of one figure per query, between 0 and 1, with the BCa bootstrap over queries.

    The interval reaches down at least as far as queries in which the figure is 0 could remain unseen with a probability
    of 5 %: a bootstrap draws from what was seen. Where all figures are equal, it reaches up likewise.

    Args:
        figures: (queries,), at least one.
    """
    value, unseen = float(figures.mean()), _unseen(len(figures))
    if np.ptp(figures) == 0:
        return Interval(value, value * (1 - unseen), value + (1 - value) * unseen)
    low, high = _ends(figures, np.mean)
    return Interval(value, min(low, value * (1 - unseen)), high)


def ratio(
    count: int, value: Callable[[npt.NDArray[np.intp]], float], base: Callable[[npt.NDArray[np.intp]], float]
) -> Interval:
    """The ratio of two figures of the same labels, with the BCa bootstrap over labels.

    The interval reaches down at least as far as :func:`mean` says.

    Args:
        count: how many labels there are.
        value, base: the figures of some of the labels, by their indices.
    """

    def of(rows: npt.NDArray[np.intp]) -> float:
        return value(rows) / divisor if (divisor := base(rows)) > 0 else float("nan")

    labels = np.arange(count)
    point = value(labels) / base(labels)
    low, high = _ends(labels, of)
    return Interval(point, min(low, point * (1 - _unseen(count))), high)


def _ends(data: npt.NDArray[Any], statistic: Callable[..., Any]) -> tuple[float, float]:
    """The ends of an interval: bias-corrected and accelerated (Efron 1987), since few queries may lose much.

    By percentiles where that is undefined: all samples are equal, or some have no figure.
    """
    from scipy import stats

    if len(data) == 1:
        return (statistic(data),) * 2
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore", category=stats.DegenerateDataWarning):
        drawn = stats.bootstrap(
            (data,), statistic, confidence_level=CONFIDENCE, n_resamples=_RESAMPLES, method="BCa", rng=0
        )
    ends = np.array(drawn.confidence_interval)
    if np.isnan(ends).any():
        tail = (1 - CONFIDENCE) / 2
        ends = np.nanquantile(drawn.bootstrap_distribution, [tail, 1 - tail])
    return float(ends[0]), float(ends[1])


def _unseen(count: int) -> float:
    """The largest share that so many queries miss with a probability of 5 %."""
    return float(1 - (1 - CONFIDENCE) ** (1 / count))
