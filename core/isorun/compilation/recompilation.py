"""Models that are compiled again after failed runs, or in another process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from isorun.errors import BackendFailed
from isorun.types import LoweredModel


class NotCompiled(BackendFailed):
    """One more shape of a model cannot be compiled. No run has failed: the executables of other shapes stay in use."""


@runtime_checkable
class CompiledElsewhere(Protocol):
    """An executable in another process, which compiles its model again by itself once that process was replaced.

    Attributes:
        renewed: the file to compile then, checked as when it was first opened.
        verify: called after that: raises ``InvalidModel`` if it is not what was opened.
    """

    renewed: Callable[[], LoweredModel]
    verify: Callable[[LoweredModel], object]


class Recompilations:
    """Counts how often a session's models were compiled again, and keeps the reason of the last time."""

    def __init__(self) -> None:
        self.count: int = 0
        self.reason: str = ""
        self._lock = threading.Lock()

    def add(self, reason: str) -> None:
        """Count one more."""
        with self._lock:
            self.count += 1
            self.reason = reason
