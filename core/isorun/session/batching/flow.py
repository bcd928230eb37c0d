"""Requests in flight, between the thread that reads them and the one that takes results."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from isorun.session.batching.batcher import Batcher
from isorun.types import Feeds

_logger = logging.getLogger("isorun")


class Flow:
    """An ordered queue: one thread submits with :meth:`feed`, another receives with :meth:`take`.

    Args:
        batcher: runs the requests; closed together with the flow.
        window: maximum number of tokens in flight.
    """

    def __init__(self, batcher: Batcher, window: int) -> None:
        self._batcher = batcher
        self._window = window
        self._tokens = 0
        self._futures: deque[tuple[Future[list[Any]], int]] = deque()
        self._changed = threading.Condition()
        self._reader = 0  # the thread in feed
        self._asking = False  # it is inside the iterator, which may block
        self._ended = False  # feed is done
        self._stopped = False  # nothing more is read or taken
        self._error: BaseException | None = None  # from the iterator

    def feed(self, requests: Iterator[Feeds]) -> None:
        """Submit every request, at most a window ahead; then close the iterator.

        Errors of either are raised where results are taken, and logged if none are taken any more.
        """
        self._reader = threading.get_ident()
        try:
            try:
                self._submit_all(requests)
            finally:
                close = getattr(requests, "close", None)
                if close is not None:
                    close()
        except BaseException as error:  # raised again by take
            if self._stopped:
                _logger.warning("the requests of map() failed after their results were closed", exc_info=error)
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            self._batcher.hurry()

    def _submit_all(self, requests: Iterator[Feeds]) -> None:
        while self._wait_for_room():
            self._asking = True
            try:
                feeds = next(requests)
            except StopIteration:
                return
            finally:
                self._asking = False
            self._submit(feeds)

    def _wait_for_room(self) -> bool:
        with self._changed:
            while self._tokens >= self._window and not self._stopped:
                self._batcher.hurry()
                self._changed.wait()
            return not self._stopped

    def _submit(self, feeds: Feeds) -> None:
        try:
            future, length = self._batcher.submit(feeds)
        except Exception as error:  # noqa: BLE001  # delivered through this request's future
            future, length = Future(), 1
            future.set_exception(error)
        with self._changed:
            self._futures.append((future, length))
            self._tokens += length
            self._changed.notify_all()

    def take(self) -> Future[list[Any]]:
        """The next result, done or not.

        Raises:
            StopIteration: there are no more results.
            BaseException: the iterator's error, after the last result.
        """
        with self._changed:
            while not self._futures and not self._ended and not self._stopped:
                self._changed.wait()
            if not self._futures:
                self._stop(wait=False)
                error, self._error = self._error, None
                raise error or StopIteration
            future, length = self._futures.popleft()
            self._tokens -= length
            self._changed.notify_all()
            return future

    def close(self, wait: bool) -> None:
        """Stop reading and running, and close the iterator.

        Args:
            wait: wait for the running batch, and for the iterator to be closed unless it is blocked in ``next``.
        """
        self._stop(wait)
        with self._changed:
            if wait and threading.get_ident() != self._reader:
                self._changed.wait_for(lambda: self._ended or self._asking)

    def _stop(self, wait: bool) -> None:
        with self._changed:
            self._stopped = True
            self._futures.clear()
            self._changed.notify_all()
        self._batcher.close(cancel=True, wait=wait)
