"""The calls of a session that run on other threads, when it is their turn."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from isorun.errors import InvalidType, IsorunError, in_words
from isorun.models.feeds import FeedChecker
from isorun.session.scheduling.calls import Batching, Call
from isorun.session.scheduling.results import Results
from isorun.session.scheduling.scheduler import Scheduler
from isorun.system.arguments import check_count, check_flag, check_items, check_list, check_seconds
from isorun.types import Feeds

_MAX_TOKENS = 4096  # of a batch of map
_AHEAD = 4  # batches that map reads ahead

_streams = itertools.count(1)

if TYPE_CHECKING:
    from isorun.tuning.concurrency import ConcurrencyPlan


class ScheduledCalls:
    """What :class:`isorun.Session` has of them.

    The arrays of a request are read when it runs: do not change their contents before its results are there. Its
    mapping and its list of names may be used for another request.
    """

    _scheduler: Scheduler
    _checker: FeedChecker
    _max_queue: int

    def warmup(
        self, on: Iterable[tuple[int, int] | str | Feeds] | None = None, *, measure: bool = True
    ) -> ConcurrencyPlan:
        """Compile and run everything that requests may need, so that none of them waits for it.

        That includes the graph without padding and the executables of concurrent requests. The best plan for those is
        measured once for this model and machine, which takes some seconds, and remembered in the cache.

        Args:
            on: what requests look like: shapes (batch, sequence), texts for the tokenizer beside the model, or feeds;
                ``None`` for a range of shapes.
            measure: measure the plan if that was not done before. It has no effect on a session that has already
                scheduled a request.

        Returns:
            How concurrent requests are run.

        Raises:
            InvalidFeeds: the model does not accept them.
            IsorunError: as :meth:`run`.
        """
        self._scheduler.check_open()
        return self._scheduler.warmup(on, measure=measure)

    @property
    def concurrency_plan(self) -> ConcurrencyPlan:
        """How concurrent requests are run: as :meth:`warmup` measured it, in any process, or by default."""
        return self._scheduler.plan

    @property
    def concurrency(self) -> int:
        """The number of scheduled runs at once."""
        return self._scheduler.plan.lanes

    def submit(self, output_names: Sequence[str] | None, input_feed: Feeds) -> Future[list[Any]]:
        """Run on another thread, when it is this request's turn.

        Args:
            output_names, input_feed: as in :meth:`run`.

        Returns:
            A future with what :meth:`run` returns or raises.

        Raises:
            QueueFull: more than ``max_queue`` rows would wait.
        """
        return self._scheduler.submit(output_names, input_feed)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: None = None,
    ) -> None:
        """Run on another thread and then call ``callback(outputs, user_data, error)`` on one that runs no requests, so
        that a callback may wait for other requests.

        ``error`` is empty if the run succeeded; if it failed, ``outputs`` is empty and ``error`` says why. Exceptions
        of the callback are logged by the logger ``isorun``.
        """
        if not callable(callback):
            raise InvalidType(f"callback must be callable, got {callback!r}")

        def called_back(future: Future[list[Any]]) -> None:
            try:
                outputs, message = future.result(), ""
            except IsorunError as error:
                outputs, message = [], str(error)
            except BaseException as error:  # noqa: BLE001  # the callback must be called in any case
                outputs, message = [], in_words(error)
            callback(outputs, user_data, message)

        scheduler, callbacks = self._scheduler, self._scheduler.callbacks
        if not callbacks.reserve():
            scheduler.recorder.reject(1, self._max_queue)
        try:
            future = scheduler.submit(output_names, input_feed, run_options)
        except BaseException:
            callbacks.release()
            raise
        future.add_done_callback(lambda future: callbacks.start(partial(called_back, future)))

    async def arun(
        self,
        output_names: Sequence[str] | None,
        input_feed: Feeds,
        *,
        max_tokens: int | None = None,
        max_wait: float = 0.005,
        timeout: float | None = None,
    ) -> list[Any]:
        """Run without blocking the event loop, when it is this request's turn.

        A request of a single row shares a batch with others that are waiting, if that was measured to pay
        (:meth:`warmup`) and does not change its results (:meth:`map`).

        Args:
            output_names: as in :meth:`run`.
            input_feed: as in :meth:`run`; with ``max_tokens``, a single request as in :meth:`map`.
            max_tokens: maximum sum of the lengths in a batch; shared with callers that request the same outputs with
                the same ``max_tokens`` and ``max_wait``. ``None`` for what was measured, 0 for no batches.
            max_wait: maximum time in seconds that a request waits for others, with ``max_tokens``.
            timeout: maximum time in seconds for waiting and running. A request that is still waiting then does not run.

        Returns:
            What :meth:`run` returns or raises; with ``max_tokens``, a request's result as in :meth:`map`.

        Raises:
            QueueFull: more than ``max_queue`` rows would wait.
            DeadlineExceeded: ``timeout`` has passed.
        """
        scheduler = self._scheduler
        scheduler.check_open()
        max_tokens = check_count(max_tokens, "max_tokens", least=0, optional=True)
        max_wait = check_seconds(max_wait, "max_wait")
        if max_tokens:
            batching = Batching(max_tokens, max_wait, max_tokens)
            request = scheduler.collator.row(output_names, input_feed)
        else:
            batching = scheduler.batching() if max_tokens is None else Batching()
            request = scheduler.collator.request(output_names, input_feed, shared=partial(scheduler.shares, batching))
        return (await scheduler.answers(Call(batching), [request], timeout))[0]

    async def arun_many(
        self, output_names: Sequence[str] | None, input_feeds: Sequence[Feeds], *, timeout: float | None = None
    ) -> list[list[Any]]:
        """Run several requests as one call without blocking the event loop: all of them are accepted, or none.

        They take turns with those of other callers, and share batches, as in :meth:`arun`. After an error, those that
        are still waiting do not run.

        Args:
            output_names, timeout: as in :meth:`arun`.
            input_feeds: the feeds of each, as in :meth:`run`.

        Returns:
            What :meth:`run` returns for each.

        Raises:
            QueueFull: more than ``max_queue`` rows would wait, and some are waiting already.
            InvalidFeeds: one of them is invalid; none runs.
            IsorunError: as :meth:`arun`, the first error of a request.
        """
        check_list(input_feeds, "input_feeds", "feeds")
        self.check_room(len(input_feeds))
        scheduler = self._scheduler
        batching = scheduler.batching()
        shared = partial(scheduler.shares, batching)
        requests = [scheduler.collator.request(output_names, feeds, shared=shared) for feeds in input_feeds]
        return await scheduler.answers(Call(batching), requests, timeout) if requests else []

    def check_room(self, requests: int) -> None:
        """Reject a call of so many requests before they are prepared.

        Raises:
            QueueFull: :meth:`arun_many` would raise it now.
        """
        self._scheduler.lanes().check_room(check_count(requests, "requests", least=0))

    def run_batches(self, output_names: Sequence[str] | None, batches: Iterable[Feeds]) -> Iterator[list[Any]]:
        """Run batches side by side, a few of which are read ahead, and yield their results in order.

        Args:
            output_names: as in :meth:`run`.
            batches: the feeds of each, as in :meth:`run`.

        Raises:
            IsorunError: as :meth:`run`, where the results of that batch would be.
        """
        scheduler = self._scheduler
        check_items(batches, "batches", "feeds")
        call = Call(Batching(), bounded=False, all_threads=False)
        pending: deque[Future[list[Any]]] = deque()
        names = self._checker.outputs(output_names)
        remaining = (scheduler.prepared(names, feeds) for feeds in batches)
        try:
            request = next(remaining, None)
            while request is not None:
                following = next(remaining, None)
                if following is None:
                    call.all_threads = None
                pending.append(scheduler.put(call, request))
                if len(pending) > scheduler.plan.lanes + 1:
                    yield pending.popleft().result()
                request = following
            while pending:
                yield pending.popleft().result()
        finally:
            call.abandoned = True

    def map(
        self,
        requests: Iterable[Feeds],
        *,
        output_names: Sequence[str] | None = None,
        max_tokens: int | None = None,
        max_wait: float = 0.05,
        return_exceptions: bool = False,
    ) -> Results:
        """Run single requests in batches of similar length.

        In some models a row's results depend on the other rows of its batch: those of dynamically quantized models,
        whose scales cover the whole batch (``model_info.mixes_rows``). Their requests run one at a time, with one
        warning on the logger ``isorun``, unless ``max_tokens`` is given.

        Args:
            requests: mappings of input name to an array without a batch axis, or with one of size 1. Read on a
                separate thread, a few batches ahead of the results taken; may be endless.
            output_names: the outputs to return, in that order; ``None`` for all.
            max_tokens: maximum size of a batch, rows times its longest row; a longer request runs alone. ``None`` for
                4096, or for no batches where they would change results.
            max_wait: maximum time in seconds that a request waits for others.
            return_exceptions: return a request's error in place of its result instead of raising it.

        Returns:
            An iterator over each request's outputs, in request order, with a batch axis if the request had one, cut to
            the request's length. A failed request raises its error in its place, and the iterator continues after it.
            ``close()``, or leaving the ``with`` block, stops the work.
        """
        scheduler = self._scheduler
        scheduler.check_open()
        check_items(requests, "requests", "feeds")
        max_tokens = check_count(max_tokens, "max_tokens", optional=True)
        max_wait = check_seconds(max_wait, "max_wait")
        return_exceptions = check_flag(return_exceptions, "return_exceptions")
        output_names = self._checker.outputs(output_names)
        alone = max_tokens is None and scheduler.alone()
        max_tokens = _MAX_TOKENS if max_tokens is None else max_tokens
        window = _AHEAD * max_tokens
        batching = Batching(max_tokens, max_wait, window, next(_streams))
        if alone:
            batching = batching._replace(max_tokens=1, max_wait=0.0)
        return Results(
            requests,
            scheduler.lanes(),
            # A batch is large enough for all threads, which share its weights in the processor's caches.
            Call(batching, bounded=False, all_threads=True),
            partial(scheduler.collator.row, output_names),
            window,
            return_exceptions=return_exceptions,
            owner=scheduler,
        )

    def runs_alone(self) -> bool:
        """Whether :meth:`map` runs requests one at a time by default; logs the warning that it then gives."""
        return self._scheduler.alone()
