"""Statistics of latencies. To add one, add a field to :class:`Latency` and compute it in :func:`latency`; a column for
it is one entry in :mod:`isorun_matrix.report.columns`.

Percentiles interpolate linearly between order statistics (type 7 of Hyndman and Fan, "Sample Quantiles in
Statistical Packages", The American Statistician 50, 1996), as ``numpy.percentile`` does.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 90, 95, 99)
_LEVEL = 0.9  # minimum of an interval's confidence, if there are enough values
_NS_PER_MS = 1e6
_NS_PER_S = 1e9


@dataclass(frozen=True)
class Latency:
    """Latencies of the runs of a session, in milliseconds.

    Attributes:
        std: of the sample (n - 1); needs 2 runs.
        p50, p90, p95, p99: percentiles; ``None`` with fewer than :func:`samples_needed` runs. Earlier versions stored
            no p50 of a single one.
        notes: why figures are missing.
    """

    samples: int
    min: float
    mean: float
    std: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float
    notes: Sequence[str]


@dataclass(frozen=True)
class Interval:
    """An interval of a median, between two of the values, and the probability that it contains the median."""

    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Throughput:
    """Rates of requests that follow one another; ``tokens_per_s`` is ``None`` for a model without a sequence."""

    requests_per_s: float
    rows_per_s: float
    tokens_per_s: float | None


def samples_needed(percentile: int) -> int:
    """The minimum number of samples for a percentile: one is expected above it (p99: 100, p95: 20, p90: 10), but a
    single one has a median."""
    return 1 if percentile == 50 else math.ceil(100 / (100 - percentile))


def latency(samples: np.ndarray) -> Latency:
    """Summarize raw samples: (runs,), nanoseconds, in the order in which they were taken; at least one."""
    count = len(samples)
    times = np.asarray(samples, dtype=np.float64) / _NS_PER_MS
    needed = {"std": 2, **{f"p{percentile}": samples_needed(percentile) for percentile in PERCENTILES}}
    percentiles = {
        f"p{percentile}": float(np.percentile(times, percentile)) if count >= samples_needed(percentile) else None
        for percentile in PERCENTILES
    }
    return Latency(
        samples=count,
        min=float(times.min()),
        mean=float(times.mean()),
        std=float(times.std(ddof=1)) if count > 1 else None,
        **percentiles,
        max=float(times.max()),
        notes=[f"{name} needs {minimum} samples, got {count}" for name, minimum in needed.items() if count < minimum],
    )


def throughput(samples: np.ndarray, rows: int, tokens: int | None) -> Throughput:
    """Rates of requests that follow one another.

    Args:
        samples: (runs,), nanoseconds; a request is one run.
        rows: rows in the batches of all runs.
        tokens: real tokens in all runs; ``None`` for a model without a sequence.
    """
    seconds = float(np.sum(samples)) / _NS_PER_S
    return Throughput(len(samples) / seconds, rows / seconds, None if tokens is None else tokens / seconds)


def spread(samples: np.ndarray) -> dict[str, float]:
    """Percentiles for a plot in milliseconds, for any number of runs. Samples: (runs,), nanoseconds."""
    times = np.asarray(samples, dtype=np.float64) / _NS_PER_MS
    return {f"p{percentile}": float(np.percentile(times, percentile)) for percentile in (5, 25, 50, 75, 95)}


def rank_interval(values: Sequence[float] | np.ndarray) -> Interval | None:
    """The interval of the median of what the values are drawn from, for any distribution.

    It lies between the k-th smallest and the k-th largest value and contains the median with the probability that
    neither fewer than k of n values are below it nor above it: 1 - 2 P(B < k) with B binomial(n, 1/2). k is the
    largest for which that is 90 % or more: 93.75 % between the ends of five values. With fewer than five values, the
    level is lower.

    Args:
        values: (n,), independent, such as the medians of processes. Runs of one process are not.

    Returns:
        The interval; ``None`` with fewer than two values.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    if count < 2:
        return None
    # Integers of Python, which do not overflow.
    below = [total / 2**count for total in itertools.accumulate(math.comb(count, k) for k in range(count // 2))]
    k = max(1, bisect.bisect_right(below, (1 - _LEVEL) / 2))
    return Interval(float(ordered[k - 1]), float(ordered[count - k]), 1 - 2 * below[k - 1])
