"""Counts and times of the requests that a session schedules, as a snapshot or as a Prometheus page."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import NoReturn

from isorun.errors import QueueFull

SECONDS = tuple(0.0005 * 2**step for step in range(16))  # 0.5 ms to 16 s
_ROWS = tuple(float(2**step) for step in range(11))  # 1 to 1024


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution.

    Attributes:
        bounds: the inclusive upper bounds of all buckets but the last, which has none.
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
        return prometheus([(labels or {}, self)])


_FAMILIES = (
    ("requests", "counter", "Requests accepted"),
    ("failed", "counter", "Requests that raised an error"),
    ("rejected", "counter", "Requests rejected because the queue was full"),
    ("late", "counter", "Requests that exceeded their deadline"),
    ("tokens", "counter", "Real tokens in batches"),
    ("padding", "counter", "Padding in batches"),
    ("recompiled", "counter", "Compilations after failed runs"),
    ("waiting", "gauge", "Requests that wait at the moment"),
    ("running", "gauge", "Runs at the moment"),
    ("queue_seconds", "histogram", "Time from submission to the start of the run"),
    ("run_seconds", "histogram", "Time of a run"),
    ("batch_rows", "histogram", "Rows of a batch"),
)


def prometheus(sessions: Sequence[tuple[Mapping[str, str], Metrics]]) -> str:
    """The metrics of several sessions as one page in Prometheus' text format, version 0.0.4.

    Args:
        sessions: labels that tell a session from the others, such as the model's name; and its metrics.
    """
    page: list[str] = []
    for name, kind, text in _FAMILIES:
        samples = [(labels, getattr(own, name)) for labels, own in sessions]
        page += family(f"{name}_total" if kind == "counter" else name, kind, text, samples)
    return "\n".join(page) + "\n"


def family(
    name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], float | Histogram]]
) -> list[str]:
    """The lines of a metric of isorun in Prometheus' text format.

    Args:
        name: without the prefix ``isorun_``.
        kind: ``"counter"``, ``"gauge"`` or ``"histogram"``.
        samples: labels and values.
    """
    lines = [f"# HELP isorun_{name} {text}", f"# TYPE isorun_{name} {kind}"]
    for labels, value in samples:
        named = [f'{label}="{_escaped(content)}"' for label, content in labels.items()]
        if not isinstance(value, Histogram):
            lines.append(f"isorun_{name}{_braced(named)} {value}")
            continue
        seen = 0
        for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
            seen += count
            upper = f'le="{"+Inf" if bound == float("inf") else f"{bound:g}"}"'
            lines.append(f"isorun_{name}_bucket{_braced([*named, upper])} {seen}")
        lines.append(f"isorun_{name}_sum{_braced(named)} {value.total}")
        lines.append(f"isorun_{name}_count{_braced(named)} {value.count}")
    return lines


def _braced(labels: Sequence[str]) -> str:
    return f"{{{','.join(labels)}}}" if labels else ""


class Recorder:
    """Collects metrics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._failed = self._rejected = self._late = self._left = self._running = 0
        self._tokens = self._padding = 0
        self._queue, self._run, self._rows = Counts(SECONDS), Counts(SECONDS), Counts(_ROWS)

    def enter(self, requests: int) -> None:
        """Count requests into the queue, whose lock the caller holds. No handler of a signal runs halfway."""
        self._requests += requests

    def reject(self, requests: int, limit: int) -> NoReturn:
        """Count rejected requests, and raise ``QueueFull``."""
        with self._lock:
            self._rejected += requests
        raise QueueFull(limit)

    def leave(self, seconds: float) -> None:
        """Count a request out of the queue that waited so long; its run follows."""
        with self._lock:
            self._left += 1
            self._queue.add(seconds)

    def drop(self) -> None:
        """Count a request out of the queue that will not run."""
        with self._lock:
            self._left += 1

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
                self._requests - self._left,
                self._running,
                self._queue.histogram(),
                self._run.histogram(),
                self._rows.histogram(),
                self._tokens,
                self._padding,
            )


class Counts:
    """Counts values into a :class:`Histogram`; its owner has a lock."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def histogram(self) -> Histogram:
        """The distribution so far."""
        return Histogram(self._bounds, tuple(self._counts), self._total)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
