"""The results of an iterable of requests, in request order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Self

from isorun.session.batching.batcher import Batcher
from isorun.session.batching.flow import Flow
from isorun.session.batching.layout import Layout
from isorun.session.metrics import Recorder
from isorun.types import Feeds

_AHEAD = 4  # batches that map reads ahead


class Results(Iterator[Any]):
    """The results of an iterable of requests, in request order: what ``Session.map`` returns.

    A failed request raises its error in place of its result, as in ``concurrent.futures``; ``next`` then continues with
    the request after it. An error of the iterable is raised after the results of what it produced, and ends them.

    The iterable is read on a separate thread, ``4 * max_tokens`` ahead of the results taken. ``close()``, or leaving
    the ``with`` block, stops the work and closes the iterator.
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
        except CancelledError:  # close() was called on another thread
            raise StopIteration from None
        except Exception as error:
            if self._return_exceptions:
                return error
            raise
        finally:
            del future  # an error's traceback would keep it, and it the error

    def close(self) -> None:
        """Stop reading and running; waits for the running batch. A second call does nothing."""
        self._flow.close(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_flow"):
            self._flow.close(wait=False)


def results(
    requests: Iterable[Feeds],
    run: Callable[[Sequence[str], Feeds], list[Any]],
    layout: Layout,
    *,
    recorder: Recorder | None = None,
    parallel: int = 1,
    max_tokens: int,
    max_wait: float,
    return_exceptions: bool,
) -> Results:
    """Run an iterable of requests through a new batcher."""
    window = _AHEAD * max_tokens
    batcher = Batcher(run, layout, max_tokens, max_wait, window, recorder=recorder, parallel=parallel)
    return Results(requests, batcher, window, return_exceptions)
