"""Single requests in, batches to the runtime, single results out.

A :class:`Batcher` takes requests one by one, each with a future for its result. Two threads serve it: while
one has a batch in the runtime, the other picks the next and lays out its arrays. A batch is made around the
request that has waited longest, of those nearest to it in length, within a budget of tokens. What goes wrong
with a request is that request's alone: where a batch fails, its requests are run again one by one.

:class:`Results` puts an iterable of requests through a batcher and gives the results in the requests' order.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from isorun.errors import InvalidFeeds, IsorunError
from isorun.feeds import FeedChecker
from isorun.model import Padding
from isorun.types import Feeds, ModelInfo

_AHEAD = 4  # batches' worth of tokens that a map reads ahead


@dataclass(order=True, slots=True)
class _Request:
    """One request, ordered by length, then by arrival."""

    length: int
    number: int
    feeds: dict[str, np.ndarray] = field(compare=False)  # each (1, ...)
    kind: tuple[Any, ...] = field(compare=False)  # requests of one kind fit in one batch
    keep_axis: bool = field(compare=False)  # whether results have the batch's axis
    due: float = field(compare=False)
    future: Future[list[Any]] = field(compare=False)


class Layout:
    """How single requests of one model become a batch, and its outputs single results.

    Requests of different lengths share a batch where the model is known not to see padding: the shorter ones
    are padded on the right with zeros, mask 0. Any others share one with requests of just their shapes.

    Args:
        info: the model's inputs and outputs.
        padding: what is known about its padding.
        output_names: the outputs wanted; ``None`` for all.
    """

    def __init__(self, info: ModelInfo, padding: Padding, output_names: Sequence[str] | None) -> None:
        self._specs = {spec.name: spec for spec in info.inputs}
        self._checker = FeedChecker(info, indices=True)
        if output_names:
            self._checker.check_outputs(output_names)
        self._outputs = list(output_names or [spec.name for spec in info.outputs])
        self._mask = None if padding.refusal else padding.mask
        mask_shape = self._specs[self._mask].shape if self._mask else None
        symbol = mask_shape[1] if mask_shape and len(mask_shape) == 2 else None
        self._by_token = {
            spec.name
            for spec in (*info.inputs, *info.outputs)
            if isinstance(symbol, str) and spec.shape and len(spec.shape) > 1 and spec.shape[1] == symbol
        } | set(padding.token_outputs)

    @property
    def outputs(self) -> list[str]:
        """The outputs that each result holds."""
        return self._outputs

    def request(self, feeds: Any, number: int, due: float) -> _Request:
        """A request, checked: every input without the batch's axis, or with one of size 1.

        Raises:
            InvalidFeeds: the model does not take it, or it holds more than one row.
        """
        if not isinstance(feeds, Mapping):
            self._checker.check(feeds)  # says what it should have been
        rows, keep_axis = {}, False
        for name, array in feeds.items():
            spec = self._specs.get(name)
            if isinstance(array, np.ndarray) and spec is not None and spec.shape and array.ndim == len(spec.shape) - 1:
                rows[name] = array[None]
            else:
                rows[name], keep_axis = array, True
        self._checker.check(rows)
        for name, array in rows.items():
            if array.shape[:1] != (1,):
                raise InvalidFeeds(
                    f"A request is a single row; input {name!r} came with the shape {list(array.shape)}. "
                    "Session.run takes a batch as it is"
                )
        mask = None if self._mask is None else rows.get(self._mask)
        # A row without any key attends to all its positions alike: more of them would change it.
        stretches = mask is not None and bool(np.count_nonzero(mask))
        length = mask.shape[1] if mask is not None else max(array.size for array in rows.values())
        kind = (stretches, *(self._rest(name, array, stretches) for name, array in sorted(rows.items())))
        return _Request(length, number, rows, kind, keep_axis, due, Future())

    def _rest(self, name: str, array: np.ndarray, stretches: bool) -> tuple[Any, ...]:
        """What of an input's shape has to be the same in all of a batch."""
        return (name, array.shape[2:] if stretches and name in self._by_token else array.shape[1:])

    def batch(self, requests: Sequence[_Request]) -> dict[str, np.ndarray]:
        """The feeds of a batch: new arrays (B, S, ...), S the longest request's length."""
        if len(requests) == 1:
            return requests[0].feeds
        longest = max(request.length for request in requests)
        made = {}
        for name, first in requests[0].feeds.items():
            arrays = [request.feeds[name] for request in requests]
            if name not in self._by_token or all(array.shape == first.shape for array in arrays):
                made[name] = np.concatenate(arrays)
                continue
            made[name] = np.zeros((len(arrays), longest, *first.shape[2:]), first.dtype)
            for row, array in zip(made[name], arrays, strict=True):
                row[: array.shape[1]] = array[0]
        return made

    def split(self, outputs: Sequence[Any], requests: Sequence[_Request]) -> list[list[Any]]:
        """Each request's own results, cut to its length; copies, which outlive the batch."""
        for name, output in zip(self._outputs, outputs, strict=True):
            if not isinstance(output, np.ndarray) or output.ndim == 0 or output.shape[0] != len(requests):
                raise IsorunError(
                    f"Output {name!r} does not have a row for each of the {len(requests)} requests of a batch, so "
                    "single requests cannot be told apart in it. Leave it out, or call Session.run"
                )
        results = []
        for index, request in enumerate(requests):
            row: list[Any] = []
            for name, output in zip(self._outputs, outputs, strict=True):
                part = output[index : index + 1] if request.keep_axis else output[index]
                if name in self._by_token:
                    part = part[:, : request.length] if request.keep_axis else part[: request.length]
                row.append(part.copy())
            results.append(row)
        return results


class Batcher:
    """Batches requests that arrive one by one.

    Args:
        run: runs a batch: ``run(output_names, feeds)``, as ``Session.run`` does.
        layout: of the model's requests.
        max_tokens: the most that rows times the longest row of a batch may be; a longer request runs alone.
        max_wait: seconds that a request may wait for others to share a batch with.
        enough: the tokens at which waiting ends, all requests counted.
    """

    def __init__(
        self,
        run: Callable[[Sequence[str], Feeds], list[Any]],
        layout: Layout,
        max_tokens: int,
        max_wait: float,
        enough: int,
    ) -> None:
        self._run = run
        self._layout = layout
        self._max_tokens = max_tokens
        self._max_wait = max_wait
        self._enough = enough
        self._waiting: list[_Request] = []  # sorted
        self._tokens = 0
        self._count = 0
        self._closed = False
        self._hurry = False
        self._changed = threading.Condition()
        self._running = threading.Lock()
        self._threads = [
            threading.Thread(target=self._serve, name=f"isorun-batch-{index}", daemon=True) for index in range(2)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, feeds: Feeds) -> tuple[Future[list[Any]], int]:
        """Hand in a request. Its future, and the request's length in tokens."""
        with self._changed:
            self._count += 1
            number = self._count
        request = self._layout.request(feeds, number, time.monotonic() + self._max_wait)
        with self._changed:
            if self._closed:
                raise IsorunError("This session is closed. Open another.")
            bisect.insort(self._waiting, request)
            self._tokens += request.length
            self._hurry = False
            self._changed.notify_all()
        return request.future, request.length

    def hurry(self) -> None:
        """Nothing more comes for now: do not wait for it."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()

    def close(self, *, cancel: bool, wait: bool = True) -> None:
        """Take nothing more.

        Args:
            cancel: whether to cancel what waits rather than run it.
            wait: whether to wait for what runs.
        """
        with self._changed:
            self._closed = True
            waiting = self._waiting if cancel else []
            if cancel:
                self._waiting, self._tokens = [], 0
            self._changed.notify_all()
        for request in waiting:
            request.future.cancel()
            request.future.set_running_or_notify_cancel()
        if wait:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()

    def _serve(self) -> None:
        while requests := self._next():
            self._finish(requests)

    def _next(self) -> list[_Request]:
        """Wait for a batch; none where the batcher is closed."""
        with self._changed:
            while True:
                if not self._waiting:
                    if self._closed:
                        return []
                    self._changed.wait()
                    continue
                oldest = min(self._waiting, key=lambda request: request.number)
                rest = oldest.due - time.monotonic()
                if self._closed or self._hurry or self._tokens >= self._enough or rest <= 0:
                    requests = self._pick(oldest)
                    if requests:
                        return requests
                else:
                    self._changed.wait(rest)

    def _pick(self, oldest: _Request) -> list[_Request]:
        """The oldest request and those of its kind that are nearest to it in length, within the budget."""
        same = [request for request in self._waiting if request.kind == oldest.kind]
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
                break
        chosen = same[low : high + 1]
        numbers = {request.number for request in chosen}
        self._waiting = [request for request in self._waiting if request.number not in numbers]
        self._tokens -= sum(request.length for request in chosen)
        return [request for request in chosen if request.future.set_running_or_notify_cancel()]

    def _finish(self, requests: list[_Request]) -> None:
        try:
            feeds = self._layout.batch(requests)
            with self._running:
                outputs = self._run(self._layout.outputs, feeds)
            results = self._layout.split(outputs, requests)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is somebody's result
            if len(requests) == 1:
                requests[0].future.set_exception(error)
                return
            for request in requests:  # one of them is to blame: the others are to have their results
                self._finish([request])
            return
        for request, result in zip(requests, results, strict=True):
            request.future.set_result(result)


class Results(Iterator[Any]):
    """The results of an iterable of requests, in their order: what ``Session.map`` returns.

    A request that failed raises its error where its result would come, as ``concurrent.futures`` does; the next
    call of ``next`` goes on with the request after it. An error of the iterable itself comes after the results of
    all that it gave, and ends them.

    The iterable is read by a thread of its own, ``4 max_tokens`` ahead of what has been taken. ``close()``, or
    leaving a ``with`` block, stops the work.
    """

    def __init__(self, requests: Iterable[Feeds], batcher: Batcher, window: int, return_exceptions: bool) -> None:
        self._flow = _Flow(batcher, window)
        self._return_exceptions = return_exceptions
        self._thread = threading.Thread(target=self._flow.feed, args=(iter(requests),), name="isorun-map", daemon=True)
        self._thread.start()

    def __next__(self) -> Any:
        future = self._flow.take()
        try:
            return future.result()
        except CancelledError:  # by close(), on another thread
            raise StopIteration from None
        except Exception as error:
            if self._return_exceptions:
                return error
            raise
        finally:
            del future  # which an error's traceback would keep, and the error with it

    def close(self) -> None:
        """Stop: nothing more is read or run. Waits for a batch in the runtime. Another call does nothing."""
        self._flow.close(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_flow"):
            self._flow.close(wait=False)


class _Flow:
    """Requests on their way, between the thread that reads them and the one that takes results."""

    def __init__(self, batcher: Batcher, window: int) -> None:
        self._batcher = batcher
        self._window = window
        self._tokens = 0
        self._futures: deque[tuple[Future[list[Any]], int]] = deque()
        self._changed = threading.Condition()
        self._over = False
        self._stopped = False
        self._error: BaseException | None = None

    def feed(self, requests: Iterator[Feeds]) -> None:
        """Hand every request in, no more than a window ahead."""
        try:
            for feeds in requests:
                if self._stopped:
                    break
                self._hand_in(feeds)
                if not self._wait_for_room():
                    break
        except BaseException as error:  # noqa: BLE001  # raised again where the results are taken
            self._error = error
        finally:
            close = getattr(requests, "close", None)
            if close is not None:
                with contextlib.suppress(Exception):
                    close()
            with self._changed:
                self._over = True
                self._changed.notify_all()
            self._batcher.hurry()

    def _hand_in(self, feeds: Feeds) -> None:
        try:
            future, length = self._batcher.submit(feeds)
        except Exception as error:  # noqa: BLE001  # this request's alone
            future, length = Future(), 1
            future.set_exception(error)
        with self._changed:
            self._futures.append((future, length))
            self._tokens += length
            self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self._changed:
            while self._tokens >= self._window and not self._stopped:
                self._batcher.hurry()
                self._changed.wait()
            return not self._stopped

    def take(self) -> Future[list[Any]]:
        """The next result, done or not."""
        with self._changed:
            while not self._futures and not self._over:
                self._changed.wait()
            if not self._futures:
                self.close(wait=False)
                error, self._error = self._error, None
                raise error or StopIteration
            future, length = self._futures.popleft()
            self._tokens -= length
            self._changed.notify_all()
            return future

    def close(self, wait: bool) -> None:
        with self._changed:
            self._stopped = self._over = True
            self._futures.clear()
            self._changed.notify_all()
        self._batcher.close(cancel=True, wait=wait)


def results(
    requests: Iterable[Feeds],
    run: Callable[[Sequence[str], Feeds], list[Any]],
    layout: Layout,
    *,
    max_tokens: int,
    max_wait: float,
    return_exceptions: bool,
) -> Results:
    """Put an iterable of requests through a batcher of its own."""
    window = _AHEAD * max_tokens
    batcher = Batcher(run, layout, max_tokens, max_wait, enough=window)
    return Results(requests, batcher, window, return_exceptions)
