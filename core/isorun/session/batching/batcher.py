"""Batches of requests that arrive one by one.

A :class:`Batcher` has a thread for each batch that runs at once; if that is one, a second thread selects and assembles
the next batch meanwhile. A batch is built around the request that has waited longest, from those closest to it in
length, within a token budget. Where callers wait for their answers, requests are served in order of arrival: one of a
rare length would be skipped otherwise. If a batch fails, its requests run again one by one, so that an error
affects only the request that caused it.
"""

from __future__ import annotations

import atexit
import bisect
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from isorun.errors import InvalidArgument, IsorunError
from isorun.session.batching.layout import Layout, Request
from isorun.session.metrics import Recorder
from isorun.types import Feeds


class Batcher:
    """Batches requests that arrive one by one.

    Args:
        run: runs a batch: ``run(output_names, feeds)``, as ``Session.run`` does.
        layout: assembles and splits batches.
        max_tokens: maximum size of a batch, rows times its longest row; a longer request runs alone. With
            ``interactive``, the maximum of the sum of its requests' lengths.
        max_wait: maximum time in seconds that a request waits for others.
        enough: number of waiting tokens at which a batch starts at once.
        recorder: counts requests; ``None`` for nobody to know.
        parallel: the number of batches that run at once.
        interactive: callers wait for their answers: serve them in order of arrival, and reject requests while too many
            wait.
        initializer: what each thread calls first; the constructor waits for it, and raises what it raises.

    Raises:
        InvalidArgument: ``max_tokens`` below 1, or ``max_wait`` negative or NaN.
    """

    def __init__(
        self,
        run: Callable[[Sequence[str], Feeds], list[Any]],
        layout: Layout,
        max_tokens: int,
        max_wait: float,
        enough: int,
        *,
        recorder: Recorder | None = None,
        parallel: int = 1,
        interactive: bool = False,
        initializer: Callable[[], object] | None = None,
    ) -> None:
        if max_tokens < 1:
            raise InvalidArgument(f"max_tokens must be at least 1, got {max_tokens}")
        if not max_wait >= 0:
            raise InvalidArgument(f"max_wait must be 0 or more seconds, got {max_wait}")
        self._run = run
        self._layout = layout
        self._max_tokens = max_tokens
        self._max_wait = max_wait
        self._enough = enough
        self._recorder = recorder or Recorder()
        self._interactive = interactive
        self._waiting: list[Request] = []  # sorted
        self._tokens = 0
        self._count = 0
        self._closed = False
        self._hurry = False
        self._changed = threading.Condition()
        self._running = threading.Semaphore(parallel)
        self._initializer = initializer
        started: list[Future[None]] = [Future() for _ in range(max(parallel, 2))]
        self._threads = [
            threading.Thread(target=self._serve, args=[future], name=f"isorun-batch-{index}", daemon=True)
            for index, future in enumerate(started)
        ]
        _alive.add(self)
        for thread in self._threads:
            thread.start()
        try:
            for future in started:
                future.result()
        except BaseException:
            self.close(cancel=True)
            raise
        finally:
            self._initializer = None  # it may hold the session

    def submit(self, feeds: Feeds) -> tuple[Future[list[Any]], int]:
        """Submit a request. Returns its future and its length in tokens.

        Raises:
            InvalidFeeds: the model does not accept it.
            QueueFull: too many requests are waiting.
            IsorunError: the session is closed.
        """
        with self._changed:
            self._count += 1
            number = self._count
        request = self._layout.request(feeds, number, time.monotonic())
        with self._changed:
            if self._closed:
                raise IsorunError("This session is closed. Open another.")
            self._recorder.enter(bounded=self._interactive)
            bisect.insort(self._waiting, request)
            self._tokens += request.length
            self._hurry = False
            self._changed.notify_all()
        return request.future, request.length

    def hurry(self) -> None:
        """Run what is waiting: no further request is expected soon."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()

    def close(self, *, cancel: bool, wait: bool = True) -> None:
        """Accept no further requests.

        Args:
            cancel: cancel waiting requests instead of running them.
            wait: wait for the batch that is running.
        """
        with self._changed:
            self._closed = True
            waiting = self._waiting if cancel else []
            if cancel:
                self._waiting, self._tokens = [], 0
            self._changed.notify_all()
        self._recorder.drop(len(waiting))
        for request in waiting:
            request.future.cancel()
            request.future.set_running_or_notify_cancel()
        if wait:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()

    def _serve(self, started: Future[None]) -> None:
        try:
            if self._initializer is not None:
                self._initializer()
        except BaseException as error:  # noqa: BLE001  # raised by the constructor
            started.set_exception(error)
            return
        started.set_result(None)
        # Hold no request while waiting: through tracebacks it would keep the Results object alive that closes this
        # batcher when it is collected.
        while requests := self._next():
            self._finish(requests)
            del requests

    def _next(self) -> list[Request]:
        """Wait for a batch; empty once the batcher is closed."""
        with self._changed:
            while not (requests := self._ready()):
                if self._closed:
                    break
                self._changed.wait(self._rest())
            return requests

    def _ready(self) -> list[Request]:
        """The next batch; empty if nothing waits, or if waiting requests may still be joined by others."""
        while self._waiting:
            oldest = self._oldest()
            if not (self._closed or self._hurry or self._tokens >= self._enough or self._due() <= time.monotonic()):
                break
            if requests := self._pick(oldest):
                return requests
        return []

    def _rest(self) -> float | None:
        """Seconds until the oldest request is due; ``None`` if nothing waits."""
        if not self._waiting:
            return None
        return min(max(0.0, self._due() - time.monotonic()), threading.TIMEOUT_MAX)

    def _due(self) -> float:
        """The time until which the oldest request may wait for others."""
        return self._oldest().arrived + self._max_wait

    def _oldest(self) -> Request:
        return min(self._waiting, key=lambda request: request.number)

    def _pick(self, oldest: Request) -> list[Request]:
        """The oldest request and others of its kind, within the budget."""
        same = [request for request in self._waiting if request.kind == oldest.kind]
        chosen = self._in_order(same) if self._interactive else self._of_like_length(same, oldest)
        numbers = {request.number for request in chosen}
        self._waiting = [request for request in self._waiting if request.number not in numbers]
        self._tokens -= sum(request.length for request in chosen)
        starting = [request for request in chosen if request.future.set_running_or_notify_cancel()]
        now = time.monotonic()
        self._recorder.leave([now - request.arrived for request in starting])
        self._recorder.drop(len(chosen) - len(starting))
        return starting

    def _in_order(self, same: list[Request]) -> list[Request]:
        """The oldest requests whose lengths sum to no more than the budget."""
        by_age = sorted(same, key=lambda request: request.number)
        sums = itertools.accumulate(request.length for request in by_age)
        fitting = sum(1 for tokens in sums if tokens <= self._max_tokens)
        return sorted(by_age[: max(1, fitting)])

    def _of_like_length(self, same: list[Request], oldest: Request) -> list[Request]:
        """The oldest request and those closest to it in length, within the budget as padded."""
        low = high = same.index(oldest)
        while True:
            shorter = oldest.length - same[low - 1].length if low > 0 else None
            longer = same[high + 1].length - oldest.length if high + 1 < len(same) else None
            count = high - low + 2
            if longer is not None and count * same[high + 1].length > self._max_tokens:
                longer = None
            if shorter is not None and count * same[high].length > self._max_tokens:
                shorter = None
            if shorter is not None and (longer is None or shorter <= longer):
                low -= 1
            elif longer is not None:
                high += 1
            else:
                return same[low : high + 1]

    def _finish(self, requests: list[Request]) -> None:
        try:
            feeds = self._layout.batch(requests)
            with self._running:
                outputs = self._run(self._layout.outputs, feeds)
            results = self._layout.split(outputs, requests)
        except Exception as error:  # noqa: BLE001  # delivered through the request's future
            if len(requests) == 1:
                self._recorder.fail()
                requests[0].future.set_exception(error)
                return
            for request in requests:  # only the faulty one fails then
                self._finish([request])
            return
        for request, result in zip(requests, results, strict=True):
            request.future.set_result(result)


_alive: weakref.WeakSet[Batcher] = weakref.WeakSet()  # including closed ones whose threads still run


@atexit.register
def _close_all() -> None:
    """Python stops daemon threads anywhere at exit; a runtime that is running then aborts the process."""
    for batcher in list(_alive):
        batcher.close(cancel=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alive.clear)  # threads do not survive a fork
