"""How often models were compiled again after failed runs."""

from __future__ import annotations

import threading


class Recompilations:
    """Counts how often a session's models were compiled again.

    Attributes:
        count: how often.
        reason: the last failure.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self.reason: str = ""
        self._lock = threading.Lock()

    def add(self, reason: str) -> None:
        """Count one more."""
        with self._lock:
            self.count += 1
            self.reason = reason
