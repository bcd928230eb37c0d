"""The threads behind a session: those that run what is submitted, and those that make batches for many callers."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from isorun.errors import IsorunError
from isorun.system.threads import usable_cores

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from isorun.session.batching import Batcher

_T = TypeVar("_T")


class Background:
    """Threads, started when there is work for them.

    None of them keeps the session alive that they work for: one that nobody closed is collected, and they end.

    Attributes:
        closing: whether nothing new is taken; what was submitted before still runs.
        closed: what is said then.
    """

    def __init__(self) -> None:
        self.closing = False
        self.closed = "This session is closed. Open another."
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._threads: list[threading.Thread] = []
        self._batchers: dict[object, Batcher] = {}

    def check_open(self) -> None:
        """Refuse new work once it is closing.

        Raises:
            IsorunError: it is.
        """
        if self.closing:
            raise IsorunError(self.closed)

    def submit(self, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Call on another thread.

        Raises:
            As :meth:`check_open`.
        """
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            self.check_open()
            if self._pool is None:
                threads = self._threads  # a thread that held this would keep it from being collected
                self._pool = ThreadPoolExecutor(
                    usable_cores(), "isorun", initializer=lambda: threads.append(threading.current_thread())
                )
            return self._pool.submit(work, *arguments)

    def batcher(self, wishes: object, make: Callable[[], Batcher]) -> Batcher:
        """The batcher of all callers with the same wishes, made for the first of them.

        Raises:
            As :meth:`check_open`.
        """
        with self._lock:
            self.check_open()
            if not self._batchers:
                weakref.finalize(self, _end, self._batchers).atexit = False  # then they are closed with a wait
            if wishes not in self._batchers:
                self._batchers[wishes] = make()
            return self._batchers[wishes]

    def close(self) -> bool:
        """Wait for what was submitted, but for what the calling thread itself is in, and end the threads.

        Returns:
            Whether this call did so; ``False`` where another has.
        """
        with self._lock:
            if self.closing:
                return False
            self.closing = True
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()
        for batcher in self._batchers.values():
            batcher.close(cancel=False)
        return True


def _end(batchers: Mapping[object, Batcher]) -> None:
    """Of a session that nobody closed."""
    for batcher in batchers.values():
        batcher.close(cancel=True, wait=False)
