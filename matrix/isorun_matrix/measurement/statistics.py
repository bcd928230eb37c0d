"""Latencies in numbers: percentiles, mean and spread, and the rates that follow from them.

Percentiles interpolate linearly between order statistics (type 7 of Hyndman and Fan, "Sample Quantiles in
Statistical Packages", The American Statistician 50, 1996), as ``numpy.percentile`` does. A percentile is given
only where at least one sample is expected above it: p99 needs 100 samples, p95 20, p90 10 and p50 2.

How far a median can be trusted is told from the run's own parts: samples in a row resemble one another (clocks, caches,
other programs), and a formula that takes them for independent calls nearly everything significant.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

PERCENTILES = (50, 90, 95, 99)
_PARTS = 6  # 1 - 2 / 2**6: their medians lie on both sides of the true one in 97 of 100 runs
_NS_PER_MS = 1e6
_NS_PER_S = 1e9


def samples_needed(percentile: int) -> int:
    """The least number of samples of which one is expected above a percentile."""
    return math.ceil(100 / (100 - percentile))


def latency(samples: np.ndarray) -> dict[str, Any]:
    """What raw samples amount to.

    Args:
        samples: (runs,), nanoseconds, in the order in which they were taken.

    Returns:
        ``samples``, their number; in milliseconds ``min``, ``mean``, ``std`` (of the sample, n - 1), ``p50``,
        ``p90``, ``p95``, ``p99`` and ``max``; ``p50_interval`` (:func:`median_interval`); and ``notes``, which say
        why one of these is ``None``.
    """
    count = len(samples)
    times = np.asarray(samples, dtype=np.float64) / _NS_PER_MS
    found: dict[str, Any] = {"samples": count, "min": None, "mean": None, "std": None}
    notes = []
    if count:
        found |= {"min": float(times.min()), "mean": float(times.mean())}
    if count > 1:
        found["std"] = float(times.std(ddof=1))
    else:
        notes.append(f"std needs 2 samples; there {_are(count)}")
    for percentile in PERCENTILES:
        needed = samples_needed(percentile)
        found[f"p{percentile}"] = float(np.percentile(times, percentile)) if count >= needed else None
        if count < needed:
            notes.append(f"p{percentile} needs {needed} samples; there {_are(count)}")
    found["max"] = float(times.max()) if count else None
    return {**found, "p50_interval": median_interval(times), "notes": notes}


def median_interval(times: np.ndarray) -> list[float] | None:
    """The least and the greatest of the medians of consecutive sixths: where the median would be found again.

    Sixths that are independent of one another contain the true median in between in 97 of 100 runs, whatever the
    distribution; of a run that grew slower, or that something disturbed, the interval is as wide as that was.

    Args:
        times: (runs,), in order. Of fewer than six, each is a part, and the interval says less.

    Returns:
        Both ends, in the unit of ``times``; ``None`` with fewer than two.
    """
    if len(times) < 2:
        return None
    medians = [float(np.median(part)) for part in np.array_split(times, min(_PARTS, len(times)))]
    return [min(medians), max(medians)]


def throughput(samples: np.ndarray, rows: int, tokens: int | None) -> dict[str, float | None]:
    """What is served in a second, one request after another.

    Args:
        samples: (runs,), nanoseconds; a request is one run.
        rows: rows of the batches of all runs together.
        tokens: real tokens of all runs together; ``None`` where the model has none.
    """
    seconds = float(np.sum(samples)) / _NS_PER_S
    if seconds == 0:
        return {"requests_per_s": None, "rows_per_s": None, "tokens_per_s": None}
    return {
        "requests_per_s": len(samples) / seconds,
        "rows_per_s": rows / seconds,
        "tokens_per_s": None if tokens is None else tokens / seconds,
    }


def spread(samples: np.ndarray) -> dict[str, float]:
    """Where the bulk of the samples lies, for a plot: the 5th, 25th, 50th, 75th and 95th percentile, in
    milliseconds."""
    times = np.asarray(samples, dtype=np.float64) / _NS_PER_MS
    return {f"p{share}": float(np.percentile(times, share)) for share in (5, 25, 50, 75, 95)}


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"
