"""Counts and times of HTTP requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from isorun.session.scheduling.metrics import SECONDS, Counts, Histogram, family


class Traffic:
    """The requests of a server. Used on the event loop only.

    Args:
        labels: of all metrics: what tells this server from others that answer for it, as replicas do.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.labels = labels or {}
        self.at_once = 0
        """The requests that are open."""
        self.draining = False
        """Whether the server is about to stop: connections are closed after their answers."""
        self._answers: Counter[tuple[str, str, int]] = Counter()
        self._seconds: dict[str, Counts] = {}

    def enter(self) -> None:
        """Count a request."""
        self.at_once += 1

    def leave(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count its answer."""
        self.at_once -= 1
        self._answers[method, route, status] += 1
        if route not in self._seconds:
            self._seconds[route] = Counts(SECONDS)
        self._seconds[route].add(seconds)

    def seconds(self) -> dict[str, Histogram]:
        """The times of the requests of each route."""
        return {route: counts.histogram() for route, counts in self._seconds.items()}

    def prometheus(self) -> str:
        """The same in Prometheus' text format."""
        answers = [
            ({**self.labels, "method": method, "route": route, "status": str(status)}, count)
            for (method, route, status), count in sorted(self._answers.items())
        ]
        seconds = [({**self.labels, "route": route}, histogram) for route, histogram in self.seconds().items()]
        lines = [
            *family("http_requests_total", "counter", "Answers by status; 499 if the client had left", answers),
            *family("http_at_once", "gauge", "Requests that are open", [(self.labels, self.at_once)]),
            *family("http_seconds", "histogram", "Time of a request", seconds),
        ]
        return "\n".join(lines) + "\n"
