"""The results of an iterable of requests, in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self

from isorun.session.batching.batcher import Batcher
from isorun.session.batching.flow import Flow
from isorun.session.batching.layout import Layout
from isorun.types import Feeds

_AHEAD = 4  # batches' worth of tokens that a map reads ahead


class Results(Iterator[Any]):
    """The results of an iterable of requests, in their order: what ``Session.map`` returns.

    A request that failed raises its error where its result would come, as ``concurrent.futures`` does; the next
    call of ``next`` goes on with the request after it. An error of the iterable itself comes after the results of
    all that it gave, and ends them.

    The iterable is read by a thread of its own, ``4 max_tokens`` ahead of what has been taken. ``close()``, or
    leaving a ``with`` block, stops the work and closes the iterator. An error in closing it is raised there, or, where
    the results were taken to their end, after them.
    """

    def __init__(self, requests: Iterable[Feeds], batcher: Batcher, window: int, return_exceptions: bool) -> None:
        self._flow = Flow(batcher, window)
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
        """Stop: nothing more is read or run. Waits for a batch in the runtime. Another call does nothing.

        Raises:
            BaseException: what closing the iterator of requests raised.
        """
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
