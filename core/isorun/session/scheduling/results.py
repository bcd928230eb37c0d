"""The results of an iterable of requests, in request order."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Self

from isorun.session.scheduling.calls import Call, Request
from isorun.session.scheduling.lanes import Lanes
from isorun.system import threads
from isorun.types import Feeds

_logger = logging.getLogger("isorun")


class Results(Iterator[Any]):
    """The results of an iterable of requests, in request order: what ``Session.map`` returns.

    A failed request raises its error in place of its result, as in ``concurrent.futures``; ``next`` then continues with
    the request after it. An error of the iterable is raised after the results of what it produced, and ends them.

    The iterable is read on a separate thread, ``4 * max_tokens`` ahead of the results taken. ``close()``, or leaving
    the ``with`` block, stops the work and closes the iterator.
    """

    def __init__(
        self,
        requests: Iterable[Feeds],
        lanes: Lanes,
        call: Call,
        request: Callable[[Feeds], Request],
        window: int,
        *,
        return_exceptions: bool,
        owner: object = None,
    ) -> None:
        self._reader = _Reader(lanes, call, request, window)
        self._return_exceptions = return_exceptions
        self._owner = owner  # what ends the lanes when it is collected
        self._thread = threads.start(self._reader.read, iter(requests), name="isorun-map")

    def __next__(self) -> Any:
        future = self._reader.take()
        try:
            return future.result()
        except CancelledError:  # close() was called on another thread
            raise StopIteration from None
        except Exception as error:
            if self._return_exceptions:
                return error
            raise
        except BaseException:  # Ctrl-C: the next call waits for the same result
            self._reader.give_back(future)
            raise
        finally:
            del future  # an error's traceback would keep it, and it the error

    def close(self) -> None:
        """Stop reading and running; waits for the running batch. A second call does nothing."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_reader"):
            self._reader.abandon()


class _Reader:
    """Submits the requests of an iterable on one thread, up to a number of tokens in flight, and hands out their
    futures on another."""

    def __init__(self, lanes: Lanes, call: Call, request: Callable[[Feeds], Request], window: int) -> None:
        self._lanes = lanes
        self._call = call
        self._request = request
        self._window = window
        self._tokens = 0
        self._futures: deque[tuple[Future[list[Any]], int]] = deque()
        self._changed = threads.Condition()
        self._thread = 0  # the thread in read
        self._asking = False  # it is inside the iterator, which may block
        self._ended = False  # read is done
        self._stopped = False  # nothing more is read or taken
        self._error: BaseException | None = None  # from the iterator

    def read(self, requests: Iterator[Feeds]) -> None:
        """Submit every request, at most a window ahead; then close the iterator.

        Errors of either are raised where results are taken, and logged if none are taken any more.
        """
        self._thread = threading.get_ident()
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
            self._lanes.hurry(self._call)

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
        if self._tokens >= self._window:
            self._lanes.hurry(self._call)
        with self._changed:
            self._changed.wait_for(lambda: self._tokens < self._window or self._stopped)
            return not self._stopped

    def _submit(self, feeds: Feeds) -> None:
        future: Future[list[Any]]
        try:
            request = self._request(feeds)
            self._lanes.put(self._call, [request])
            future, length = request.future, request.length
        except Exception as error:  # noqa: BLE001  # delivered through this request's future
            future, length = Future(), 1
            future.set_exception(error)
        with self._changed:
            stopped = self._stopped
            if not stopped:
                self._futures.append((future, length))
                self._tokens += length
                self._changed.notify_all()
        if stopped:
            future.cancel()

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
                self._stopped = True
                error, self._error = self._error, None
                raise StopIteration if error is None else error
            future, length = self._futures.popleft()
            self._tokens -= length
            self._changed.notify_all()
            return future

    def give_back(self, future: Future[list[Any]]) -> None:
        """Have :meth:`take` return a result again."""
        with self._changed:
            self._futures.appendleft((future, 0))
            self._changed.notify_all()

    def abandon(self) -> None:
        """Stop reading and running, on any thread: a collection may happen while it holds locks."""
        with self._changed:
            self._stopped = self._call.abandoned = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop reading and running. Waits for the running batch, and for the iterator to be closed unless it blocks."""
        self.abandon()
        while self._futures:
            self._futures.popleft()[0].cancel()
        self._lanes.wait_for(self._call)
        with self._changed:
            if threading.get_ident() != self._thread:
                self._changed.wait_for(lambda: self._ended or self._asking)
