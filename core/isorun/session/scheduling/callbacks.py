"""The threads on which callbacks run, so that a callback may wait for other requests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from isorun.errors import IsorunError
from isorun.system import threads

_logger = logging.getLogger("isorun")


class Callbacks:
    """Calls functions, each on a thread of its own, up to a limit of those that are due or have not returned."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._count = 0
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def reserve(self) -> bool:
        """Reserve the place of a callback; ``False`` if there are too many."""
        with self._lock:
            admitted = self._count < self.limit
            self._count += admitted
            return admitted

    def release(self) -> None:
        """Give up the place of a callback."""
        with self._lock:
            self._count -= 1

    def start(self, callback: Callable[[], object]) -> None:
        """Call a function on a new thread, in its reserved place; what it raises is logged."""
        with self._lock:
            try:
                self._threads.add(threads.start(self._run, callback, name="isorun-callback", daemon=False))
                return
            except IsorunError as error:
                _logger.warning("a callback of run_async() runs on the thread that ran its request: %s", error)
        self._run(callback)

    def join(self) -> None:
        """Wait for all callbacks, except this very thread."""
        with self._lock:
            others = self._threads - {threading.current_thread()}
        for thread in others:
            thread.join()

    def _run(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception:
            _logger.exception("a callback of run_async() raised an exception")
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())
            self.release()
