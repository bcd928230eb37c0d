"""Concurrent requests of one session: when each runs, on which executable, alone or in a batch."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from isorun.compilation.compiled_model import CompiledModel
from isorun.errors import DeadlineExceeded, IsorunError
from isorun.models.feeds import FeedChecker, refuse_options
from isorun.session.backend_selection import Resolved
from isorun.session.executor import Executor
from isorun.session.lanes import Lanes
from isorun.session.metrics import Metrics, Recorder
from isorun.system.process_usage import return_free_memory
from isorun.types import Feeds

if TYPE_CHECKING:
    from concurrent.futures import Future

    from isorun.session import batching
    from isorun.tuning.accuracy import Run
    from isorun.tuning.concurrency import ConcurrencyPlan
    from isorun.tuning.record import Subject

_MAX_TOKENS = 4096  # of a batch of map

_logger = logging.getLogger("isorun")


class Scheduler:
    """Runs the requests of :meth:`Session.submit`, ``run_async``, ``arun`` and ``map``, whose docstrings describe them.

    It does not keep its session alive, and starts no thread before its first request or :meth:`warmup`.

    Args:
        resolved: the session's model.
        checker: validates the arguments of runs.
        closers: what the session closes when it releases its model; the lanes' models are added.
        max_queue: maximum number of waiting requests.
    """

    def __init__(
        self,
        resolved: Resolved,
        checker: FeedChecker,
        closers: ExitStack,
        max_queue: int,
    ) -> None:
        self._resolved = resolved
        self._info = resolved.model.info
        self._checker = checker
        self._closers = closers
        self._recorder = Recorder(max_queue)
        self._executor = Executor(self._recorder)
        self._unwarned = threading.Lock()  # acquired for good by the call of `alone` that logs its warning

    def alone(self) -> bool:
        """Whether requests do not share batches unless the caller asks for it: their results would depend on one
        another. The first call that returns true logs a warning."""
        if not self._info.mixes_rows:
            return False
        if self._unwarned.acquire(blocking=False):
            _logger.warning(
                "Requests do not share batches: in this model, the results of one depend on the others in its batch "
                "(%s). To batch nevertheless, pass max_tokens or batch_tokens",
                self._info.mixes_rows,
            )
        return True

    @cached_property
    def arrangement(self) -> ConcurrencyPlan:
        """How concurrent requests are run."""
        from isorun.tuning import concurrency

        return concurrency.remembered(self._subject) or concurrency.default_plan(self._subject)

    @property
    def _subject(self) -> Subject:
        from isorun.tuning.record import Subject

        return Subject(self._resolved.compiler, self._resolved.backend, self._resolved.config)

    def metrics(self) -> Metrics:
        """Counts and times of all requests."""
        return self._recorder.snapshot()

    def warmup(self, on: Iterable[tuple[int, int] | str | Feeds] | None, *, measure: bool) -> ConcurrencyPlan:
        """Compile and run everything that requests may need."""
        from isorun.session import warmup

        if measure and "_lanes" not in self.__dict__:
            self.__dict__["arrangement"] = self._measure()
        feeds = warmup.feeds(self._resolved.compiler.graphs, self._checker, on)
        # On the thread of the first request: the first run on another takes 1.2 to 1.9 times as long. A request that is
        # alone runs on the first model, which is run last: its weights are in the caches then.
        models = self._lanes.models()[::-1]

        def run(models: Iterable[CompiledModel], requests: Iterable[Feeds]) -> None:
            for model in models:
                for request in requests:
                    model.run(self._info.output_names, request)

        self._executor.call(run, models, feeds)
        if self.arrangement.batch_tokens:
            single = [each for each in feeds if _is_single(each)]
            self._batcher(None, self.arrangement.batch_tokens, 0.0, lambda: run(models, single))
        return_free_memory()  # of closed candidates, and of kernels for lengths that were run once
        return self.arrangement

    def _measure(self) -> ConcurrencyPlan:
        """The best plan. Its lanes are kept: runtimes have compiled for them what shapes need."""
        from isorun.tuning import concurrency

        compiled: dict[tuple[int, int | None], Lanes] = {}

        def open_lanes(plan: ConcurrencyPlan) -> list[Run]:
            lanes = compiled[plan[:2]] = self._make_lanes(plan)
            return [partial(model.run, self._info.output_names) for model in lanes.of_overlapping_runs()]

        try:
            plan = concurrency.measured(self._subject, self._info, open_lanes)
            if kept := compiled.pop(plan[:2], None):
                self._keep(kept)
            return plan
        finally:
            for lanes in compiled.values():
                lanes.close()

    def submit(self, output_names: Sequence[str] | None, feeds: Feeds, *, more: bool = False) -> Future[list[Any]]:
        """Run on another thread, when it is this request's turn."""
        return self._executor.submit(self._run, output_names, feeds, False if more else None)

    def submit_then(
        self,
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        output_names: Sequence[str] | None,
        feeds: Feeds,
        run_options: object,
    ) -> None:
        """Run on another thread, and call ``callback(outputs, user_data, error)`` on one of its own."""

        def work() -> list[Any]:
            refuse_options(run_options)
            return self._run(output_names, feeds)

        def called_back(future: Future[list[Any]]) -> None:
            try:
                outputs, message = future.result(), ""
            except IsorunError as error:
                outputs, message = [], str(error)
            except Exception as error:  # noqa: BLE001  # the callback must be called in any case
                outputs, message = [], f"{type(error).__name__}: {error}".removesuffix(": ")
            callback(outputs, user_data, message)

        self._executor.submit_then(called_back, work)

    async def arun(
        self,
        output_names: Sequence[str] | None,
        feeds: Feeds,
        *,
        max_tokens: int | None,
        max_wait: float,
        timeout: float | None,
    ) -> list[Any]:
        """Run without blocking the event loop, when it is this request's turn."""
        import asyncio

        if max_tokens is None:
            shared = _is_single(feeds) and not self.alone()
            max_tokens, max_wait = (self.arrangement.batch_tokens if shared else 0), 0.0
        if max_tokens == 0:
            future = self.submit(output_names, feeds)
        else:
            future = self._batcher(output_names, max_tokens, max_wait).submit(feeds)[0]
        try:
            async with asyncio.timeout(timeout) as deadline:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not deadline.expired():
                raise
            self._recorder.miss()
            raise DeadlineExceeded(f"The request was not answered within {timeout:g} s") from None

    def map(
        self,
        requests: Iterable[Feeds],
        output_names: Sequence[str] | None,
        *,
        max_tokens: int | None,
        max_wait: float,
        return_exceptions: bool,
    ) -> batching.Results:
        """Run single requests in batches of similar length."""
        self._executor.check_open()
        from isorun.session import batching

        alone = max_tokens is None and self.alone()

        # A batch is large enough for all threads, which share its weights in the processor's caches.
        lanes, threads, _ = self.arrangement
        return batching.results(
            requests,
            partial(self._run, wide=True),
            batching.Layout(self._info, output_names, alone=alone),
            recorder=self._recorder,
            parallel=lanes if threads is None else 1,
            max_tokens=_MAX_TOKENS if max_tokens is None else max_tokens,
            max_wait=0.0 if alone else max_wait,
            return_exceptions=return_exceptions,
        )

    def refuse(self, reason: str) -> None:
        """Refuse new requests."""
        self._executor.refuse(reason)

    def close(self) -> bool:
        """Wait for submitted requests.

        Returns:
            Whether this call closed it; ``False`` if it was closed before.
        """
        return self._executor.close()

    def _run(self, output_names: Sequence[str] | None, feeds: Feeds, wide: bool | None = None) -> list[Any]:
        """As ``Session.run``, on the next free lane."""
        return self._lanes.run(*self._checker.check_call(output_names, feeds), wide)

    @cached_property
    def _lanes(self) -> Lanes:
        return self._keep(self._make_lanes(self.arrangement))

    def _keep(self, lanes: Lanes) -> Lanes:
        self._closers.callback(lanes.close)
        self.__dict__["_lanes"] = lanes
        return lanes

    def _make_lanes(self, plan: ConcurrencyPlan) -> Lanes:
        resolved, threads = self._resolved, plan.threads
        return Lanes(
            resolved.model,
            None if threads is None else lambda: resolved.compile_again(threads),
            plan.lanes,
            self._recorder,
            shared=threads == 1 and resolved.backend.capabilities.runs_on_caller,
            mask=self._info.mask,
        )

    def _layout(self, output_names: Sequence[str] | None) -> batching.Layout:
        from isorun.session import batching

        return batching.Layout(self._info, output_names)

    def _batcher(
        self,
        output_names: Sequence[str] | None,
        max_tokens: int,
        max_wait: float,
        initializer: Callable[[], object] | None = None,
    ) -> batching.Batcher:
        """The batcher that all callers with the same settings share."""
        reference = weakref.ref(self)  # the batcher's threads must not keep the session alive

        def run(names: Sequence[str], feeds: Feeds) -> list[Any]:
            scheduler = reference()
            assert scheduler is not None, "a caller that waits for a request holds the session"
            return scheduler._run(names, feeds)

        def make() -> batching.Batcher:
            from isorun.session import batching

            return batching.Batcher(
                run,
                self._layout(output_names),
                max_tokens,
                max_wait,
                max_tokens,
                recorder=self._recorder,
                parallel=self.arrangement.lanes,
                interactive=True,
                initializer=initializer,
            )

        return self._executor.batcher((tuple(output_names or ()), max_tokens, max_wait), make)


def _is_single(feeds: Feeds) -> bool:
    """Whether feeds are arrays of one row each."""
    return isinstance(feeds, Mapping) and all(getattr(value, "shape", ())[:1] == (1,) for value in feeds.values())
