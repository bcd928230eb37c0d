"""Counts and times of the requests that a session schedules, as a snapshot or as a Prometheus page."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import NoReturn

from isorun.errors import QueueFull

_SECONDS = tuple(0.0005 * 2**step for step in range(16))  # 0.5 ms to 16 s
_ROWS = tuple(float(2**step) for step in range(11))  # 1 to 1024


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution.

    Attributes:
        bounds: the inclusive upper bounds of all buckets but the last, which has none.
        counts: the number of values in each bucket.
        total: the sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The mean; 0 without values."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """The upper bound of the bucket that holds a percentile, at most the last bound; 0 without values."""
        rank, seen = percent / 100 * self.count, 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= rank:
                return bound if self.count else 0.0
        return self.bounds[-1]


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a session has done since it was opened. Plain calls of ``Session.run`` are not counted.

    Attributes:
        requests: requests that were submitted and accepted.
        failed: those of them that raised an error.
        rejected: requests that raised ``QueueFull``.
        late: requests that raised ``DeadlineExceeded``.
        waiting, running: requests that wait at the moment, and batches that run.
        queue_seconds: the time from submission to the start of the run, for each request.
        run_seconds: the time of a run, for each batch.
        batch_rows: rows of a batch.
        tokens, padding: real tokens and padding in all batches, by their masks.
        recompiled: how often the model was compiled again because a run had failed.
    """

    requests: int
    failed: int
    rejected: int
    late: int
    waiting: int
    running: int
    queue_seconds: Histogram
    run_seconds: Histogram
    batch_rows: Histogram
    tokens: int
    padding: int
    recompiled: int = 0

    @property
    def padding_share(self) -> float:
        """The share of padding in all batches, 0 to 1."""
        return self.padding / max(1, self.tokens + self.padding)

    def prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """The same in Prometheus' text format, version 0.0.4.

        Args:
            labels: added to every sample, such as the model's name.
        """
        given = "".join(f'{name}="{_escaped(value)}",' for name, value in (labels or {}).items())
        lines: list[str] = []

        def sample(name: str, value: float, extra: str = "") -> None:
            inside = (given + extra).rstrip(",")
            lines.append(f"isorun_{name}{f'{{{inside}}}' if inside else ''} {value}")

        def head(name: str, kind: str, text: str) -> None:
            lines.extend((f"# HELP isorun_{name} {text}", f"# TYPE isorun_{name} {kind}"))

        counters = (
            ("requests_total", self.requests, "Requests accepted"),
            ("failed_total", self.failed, "Requests that raised an error"),
            ("rejected_total", self.rejected, "Requests rejected because the queue was full"),
            ("late_total", self.late, "Requests that exceeded their deadline"),
            ("tokens_total", self.tokens, "Real tokens in batches"),
            ("padding_total", self.padding, "Padding in batches"),
            ("recompiled_total", self.recompiled, "Compilations after failed runs"),
        )
        for name, value, text in counters:
            head(name, "counter", text)
            lines.append(f"isorun_{name}{f'{{{given[:-1]}}}' if given else ''} {value}")
        for name, value, text in (("waiting", self.waiting, "Requests that wait"), ("running", self.running, "Runs")):
            head(name, "gauge", f"{text} at the moment")
            sample(name, value)
        histograms = (
            ("queue_seconds", self.queue_seconds, "Time from submission to the start of the run"),
            ("run_seconds", self.run_seconds, "Time of a run"),
            ("batch_rows", self.batch_rows, "Rows of a batch"),
        )
        for name, histogram, text in histograms:
            head(name, "histogram", text)
            seen = 0
            for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
                seen += count
                sample(f"{name}_bucket", seen, f'le="{"+Inf" if bound == float("inf") else f"{bound:g}"}"')
            sample(f"{name}_sum", histogram.total)
            sample(f"{name}_count", histogram.count)
        return "\n".join(lines) + "\n"


class Recorder:
    """Collects metrics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._failed = self._rejected = self._late = self._waiting = self._running = 0
        self._tokens = self._padding = 0
        self._queue, self._run, self._rows = _Counts(_SECONDS), _Counts(_SECONDS), _Counts(_ROWS)

    def enter(self, requests: int) -> None:
        """Count requests into the queue."""
        with self._lock:
            self._requests += requests
            self._waiting += requests

    def reject(self, requests: int, limit: int) -> NoReturn:
        """Count rejected requests, and raise ``QueueFull``."""
        with self._lock:
            self._rejected += requests
        raise QueueFull(limit)

    def leave(self, seconds: float) -> None:
        """Count a request out of the queue that waited so long; its run follows."""
        with self._lock:
            self._waiting -= 1
            self._queue.add(seconds)

    def drop(self) -> None:
        """Count a request out of the queue that will not run."""
        with self._lock:
            self._waiting -= 1

    def fail(self) -> None:
        """Count an error of a request."""
        with self._lock:
            self._failed += 1

    def miss(self) -> None:
        """Count a missed deadline."""
        with self._lock:
            self._late += 1

    @contextmanager
    def run(self, rows: int, tokens: int, padding: int) -> Iterator[None]:
        """Time a run."""
        with self._lock:
            self._running += 1
        start = perf_counter()
        try:
            yield
        finally:
            seconds = perf_counter() - start
            with self._lock:
                self._running -= 1
                self._tokens += tokens
                self._padding += padding
                self._run.add(seconds)
                self._rows.add(rows)

    def snapshot(self) -> Metrics:
        """The metrics at this moment."""
        with self._lock:
            return Metrics(
                self._requests,
                self._failed,
                self._rejected,
                self._late,
                self._waiting,
                self._running,
                self._queue.histogram(),
                self._run.histogram(),
                self._rows.histogram(),
                self._tokens,
                self._padding,
            )


class _Counts:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def histogram(self) -> Histogram:
        return Histogram(self._bounds, tuple(self._counts), self._total)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
