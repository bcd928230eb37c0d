"""The threads behind a session: a pool for submitted runs, and batchers shared by concurrent callers."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from isorun.compilation.compiled_model import CLOSED
from isorun.errors import IsorunError
from isorun.session.metrics import Recorder
from isorun.system.threads import usable_cores

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from isorun.session.batching import Batcher

_T = TypeVar("_T")


class Executor:
    """Threads that start when there is work for them.

    They do not keep their session alive: a session that is not closed is collected, and its threads end.

    Args:
        recorder: counts requests, and rejects them while too many wait; ``None`` for no limit.
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        self._recorder = recorder or Recorder()
        self._refusal = ""
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._callbacks: ThreadPoolExecutor | None = None
        self._callback_threads: list[threading.Thread] = []
        self._uncalled = 0
        self._threads: list[threading.Thread] = []
        self._batchers: dict[object, Batcher] = {}

    def check_open(self) -> None:
        """Raise ``IsorunError`` once new work is refused; submitted work still runs."""
        if self._refusal:
            raise IsorunError(self._refusal)

    def refuse(self, reason: str) -> None:
        """Refuse new work."""
        self._refusal = reason

    def submit(self, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Call on another thread.

        Raises:
            QueueFull: too many requests are waiting.
            IsorunError: as :meth:`check_open`.
        """
        with self._lock:
            pool = self._open_pool()
            self._recorder.enter()
            future = pool.submit(_recorded, self._recorder, time.monotonic(), work, arguments)
        # A future that is cancelled while it waits never runs.
        future.add_done_callback(partial(_drop_if_cancelled, self._recorder))
        return future

    def submit_then(self, callback: Callable[[Future[Any]], None], work: Callable[..., Any], *arguments: Any) -> None:
        """As :meth:`submit`, and then call ``callback(future)`` on a thread that is not the pool's.

        A callback may wait for any other request: it occupies no thread that runs requests, and there is a thread for
        each callback that has not returned. ``concurrent.futures`` logs what it raises.

        Raises:
            QueueFull: too many requests are waiting, or too many callbacks have not returned.
            IsorunError: as :meth:`check_open`.
        """
        from concurrent.futures import ThreadPoolExecutor

        allowed = self._recorder.limit + usable_cores()  # those that run are not waiting
        with self._lock:
            self.check_open()
            if self._uncalled >= allowed:
                self._recorder.reject()
            if self._callbacks is None:
                enlist = _enlister(self._callback_threads)
                self._callbacks = ThreadPoolExecutor(allowed, "isorun-callback", initializer=enlist)
            callbacks = self._callbacks
            self._uncalled += 1
        counted = weakref.WeakMethod(self._called_back)  # the pool must not keep this object alive

        def run(future: Future[Any]) -> None:
            try:
                callback(future)
            finally:
                if called_back := counted():
                    called_back()

        def schedule(future: Future[Any]) -> None:
            callbacks.submit(run, future).add_done_callback(lambda called: called.result())

        try:
            future = self.submit(work, *arguments)
        except BaseException:
            self._called_back()
            raise
        future.add_done_callback(schedule)

    def _called_back(self) -> None:
        with self._lock:
            self._uncalled -= 1

    def call(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Call on a thread of the pool, and wait for it. Nothing is recorded.

        Raises:
            As :meth:`check_open`, and as ``work``.
        """
        if threading.current_thread() in self._threads:  # one of the pool's, for which no other may be free
            return work(*arguments)
        with self._lock:
            future = self._open_pool().submit(work, *arguments)
        return future.result()

    def _open_pool(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        self.check_open()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(usable_cores(), "isorun", initializer=_enlister(self._threads))
        return self._pool

    def batcher(self, settings: object, make: Callable[[], Batcher]) -> Batcher:
        """The batcher that all callers with the same settings share, created for the first of them.

        Raises:
            As :meth:`check_open`.
        """
        with self._lock:
            self.check_open()
            if not self._batchers:
                weakref.finalize(self, _end, self._batchers).atexit = False  # at exit they are closed with a wait
            if settings not in self._batchers:
                self._batchers[settings] = make()
            return self._batchers[settings]

    def close(self) -> bool:
        """Wait for submitted work, except a call on this very thread, and end the threads.

        Returns:
            Whether this call closed it; ``False`` if it was closed before.
        """
        with self._lock:
            if self._refusal:
                return False
            self._refusal = CLOSED
        # Runs end before the callbacks that they schedule.
        for pool, threads in ((self._pool, self._threads), (self._callbacks, self._callback_threads)):
            if pool is not None:
                pool.shutdown(wait=False)
                for thread in threads:
                    if thread is not threading.current_thread():
                        thread.join()
        for batcher in self._batchers.values():
            batcher.close(cancel=False)
        return True


def _enlister(threads: list[threading.Thread]) -> Callable[[], None]:
    """The initializer of a pool that lists its threads: a reference to the executor would prevent its collection."""
    return lambda: threads.append(threading.current_thread())


def _recorded(recorder: Recorder, submitted: float, work: Callable[..., _T], arguments: tuple[Any, ...]) -> _T:
    recorder.leave([time.monotonic() - submitted])
    try:
        return work(*arguments)
    except BaseException:
        recorder.fail()
        raise


def _drop_if_cancelled(recorder: Recorder, future: Future[Any]) -> None:
    if future.cancelled():
        recorder.drop(1)


def _end(batchers: Mapping[object, Batcher]) -> None:
    """Stop the batchers of a session that was collected without being closed."""
    for batcher in batchers.values():
        batcher.close(cancel=True, wait=False)
