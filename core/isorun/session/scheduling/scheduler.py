"""Concurrent requests of one session: when each runs, on which compiled model, alone or in a batch."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from isorun.compilation import corpus
from isorun.compilation.compiled_model import CLOSED, CompiledModel
from isorun.errors import DeadlineExceeded, InvalidFeeds, SessionClosed
from isorun.models.feeds import FeedChecker, refuse_options
from isorun.session.backend_selection import Resolved
from isorun.session.scheduling.callbacks import Callbacks
from isorun.session.scheduling.calls import Batching, Call, Request
from isorun.session.scheduling.collator import Collator
from isorun.session.scheduling.lane_models import LaneModels
from isorun.session.scheduling.lanes import Lanes
from isorun.session.scheduling.metrics import Metrics, Recorder
from isorun.session.scheduling.trials import Trials
from isorun.system.arguments import check_flag, check_seconds
from isorun.system.interruption import interrupts
from isorun.system.process_usage import return_free_memory
from isorun.system.threads import usable_cores
from isorun.types import Feeds

if TYPE_CHECKING:
    from isorun.tuning.accuracy import Run
    from isorun.tuning.concurrency import ConcurrencyPlan
    from isorun.tuning.record import Subject

_logger = logging.getLogger("isorun")


class Scheduler:
    """What the scheduled calls of a session share: the queue of their requests, and the threads that run them.

    It does not keep its session alive, and starts no thread before its first request or :meth:`warmup`.

    Args:
        closers: what the session closes when it releases its model; those of the lanes are added.
        max_queue: maximum number of waiting rows.
    """

    def __init__(self, resolved: Resolved, checker: FeedChecker, closers: ExitStack, max_queue: int) -> None:
        if resolved.worker is not None:  # it may be used after a fork, in which an import of another thread never ends
            from isorun.tuning import concurrency  # noqa: F401
        self._resolved = resolved
        self._mixes_rows = resolved.model.info.mixes_rows
        self._checker = checker
        self._closers = closers
        self._max_queue = max_queue
        self.collator: Collator = Collator(resolved.model.info, checker)
        exact = resolved.config.precision in ("fp32", "fp64") and not resolved.model.info.quantized
        self._trials = None if self._mixes_rows else Trials(self.collator, exact=exact)
        self.recorder: Recorder = Recorder()
        self.callbacks: Callbacks = Callbacks(max_queue + usable_cores())  # the requests of some run: they do not wait
        self._closed = False
        self._lock = threading.Lock()
        self._plan: ConcurrencyPlan | None = None
        self._measured: LaneModels | None = None  # of the plan, if it was measured here
        self._started: Lanes | None = None
        self._unwarned = threading.Lock()  # acquired for good by the call of `alone` that logs its warning

    def alone(self) -> bool:
        """Whether requests do not share batches unless the caller asks for it: their results would depend on one
        another. The first call that returns true logs a warning."""
        if not self._mixes_rows:
            return False
        if self._unwarned.acquire(blocking=False):
            _logger.warning(
                "Requests do not share batches: in this model, the results of one depend on the others in its batch "
                "(%s). To batch nevertheless, pass max_tokens or batch_tokens",
                self._mixes_rows,
            )
        return True

    @property
    def plan(self) -> ConcurrencyPlan:
        """How concurrent requests are run."""
        if self._plan is None:
            from isorun.tuning import concurrency

            self._plan = concurrency.remembered(self._subject) or concurrency.default_plan(self._subject)
        return self._plan

    @property
    def _subject(self) -> Subject:
        from isorun.tuning.record import Subject

        return Subject(self._resolved.compiler, self._resolved.backend, self._resolved.config)

    def metrics(self) -> Metrics:
        """Counts and times of all requests."""
        return self.recorder.snapshot()

    def warmup(self, on: Iterable[tuple[int, int] | str | Feeds] | None, *, measure: bool) -> ConcurrencyPlan:
        """Compile and run everything that requests may need."""
        from isorun.session.scheduling import warmup

        measure = check_flag(measure, "measure")
        if measure and self._started is None:
            self._measure()
        graphs, device = self._resolved.compiler.graphs, self._resolved.config.device
        static = self._resolved.backend.capabilities.static_shapes
        feeds = warmup.feeds(graphs, self._checker, on, device, static)
        single = [sample for sample in feeds.runs if self.collator.is_single(sample)]
        lanes = self.lanes()
        # A request that is alone runs on the first model, which is run last: its weights are in the caches then.
        models = lanes.models.all()[::-1]
        outputs = self._resolved.model.info.output_names
        ran, rejected = threading.Event(), list[InvalidFeeds]()

        def run(model: CompiledModel, sample: Feeds, may_be_rejected: bool) -> None:
            try:
                model.run(outputs, sample)
            except InvalidFeeds as error:  # the backend has no engine for this shape, or rejects the mask
                if not may_be_rejected:
                    raise
                rejected.append(error)
            else:
                ran.set()

        def runs(samples: list[Feeds], may_be_rejected: bool) -> list[Callable[[], None]]:
            return [partial(run, model, sample, may_be_rejected) for model in models for sample in samples]

        first = runs([*feeds.runs, *self._joined(single), *feeds.between], on is None) + runs(feeds.others, True)
        # Batches are taken by any thread. Without them, the thread that rests takes the next request.
        others = lanes.models.lanes if self.plan.batch_tokens else 0
        lanes.warm([first, *[runs(single, on is None)] * others])
        if rejected and not ran.is_set():
            raise rejected[0]
        return_free_memory()  # of closed candidates, and of kernels for lengths that were run once
        return self.plan

    def _joined(self, single: Sequence[Feeds]) -> list[Feeds]:
        """A batch as concurrent callers of :meth:`Session.arun` fill it, of lengths from the shortest to the longest:
        it may need another graph than any of its rows."""
        batching = self.batching()
        if not self.shares(batching):
            return []
        requests = [self.collator.request(None, feeds, shared=lambda: True) for feeds in single]
        requests = sorted(requests, key=lambda request: request.length)
        alike = [request for request in requests if request.kind == requests[-1].kind and request.length]
        count = batching.max_tokens // max((request.length for request in alike), default=1)
        return [self.collator.batch(corpus.spread(alike, max(2, count)))] if len(alike) > 1 else []

    def _measure(self) -> None:
        """Measure the best plan. Its models are kept: runtimes have compiled for them what shapes need."""
        from isorun.tuning import concurrency

        compiled: dict[tuple[int, int | None], LaneModels] = {}
        info = self._resolved.model.info

        def open_lanes(plan: ConcurrencyPlan) -> list[Run]:
            models = compiled[plan[:2]] = self._models(plan)
            return [partial(model.run, info.output_names) for model in models.of_lanes()]

        try:
            self._plan = concurrency.measured(self._subject, info, open_lanes)
            self._measured = compiled.pop(self._plan[:2], None)
            if self._measured is not None:
                self._closers.callback(self._measured.close)
        finally:
            for models in compiled.values():
                models.close()

    def check_open(self) -> None:
        """Raise ``IsorunError`` once new requests are refused; submitted ones still run."""
        if self._closed:
            raise SessionClosed(CLOSED)
        self._resolved.model.check_open()

    def close(self) -> bool:
        """Wait for submitted requests. Returns whether this call closed it; ``False`` if it was closed before."""
        with self._lock:
            if self._closed or self._resolved.model.closed:
                return False
            self._closed = True
        if self._started is not None:
            self._started.close()
        self.callbacks.join()
        return True

    def submit(self, output_names: Sequence[str] | None, feeds: Feeds, run_options: object = None) -> Future[list[Any]]:
        """Submit a request that shares no batch. The future has the error if it is invalid."""
        self.lanes()  # raises if the session is closed
        return self.put(Call(Batching()), self.prepared(output_names, feeds, run_options))

    def prepared(
        self, output_names: Sequence[str] | None, feeds: Feeds, run_options: object = None
    ) -> Request | Future[list[Any]]:
        """A request that shares no batch; for an invalid one, a future with the error."""
        try:
            refuse_options(run_options)
            return self.collator.request(output_names, feeds, shared=lambda: False)
        except Exception as error:  # delivered through the future
            if interrupts(error):
                raise
            future: Future[list[Any]] = Future()
            future.set_exception(error)
            return future

    def put(self, call: Call, prepared: Request | Future[list[Any]]) -> Future[list[Any]]:
        """Submit what :meth:`prepared` returned as part of a call."""
        if isinstance(prepared, Future):
            return prepared
        prepared.arrived = time.monotonic()  # batches are read ahead
        self.lanes().put(call, [prepared])
        return prepared.future

    async def answers(self, call: Call, requests: Sequence[Request], timeout: float | None) -> list[list[Any]]:
        """Submit requests as one call, and wait for their results; after an error, for none of the others."""
        import asyncio

        timeout = check_seconds(timeout, "timeout", optional=True)
        self.lanes().put(call, requests)
        try:
            async with asyncio.timeout(timeout) as deadline:
                return await asyncio.gather(*(asyncio.wrap_future(request.future) for request in requests))
        except TimeoutError:
            if not deadline.expired():
                raise
            self.recorder.miss()
            raise DeadlineExceeded(f"The request was not answered within {timeout:g} s") from None
        finally:
            call.abandoned = True
            for request in requests:  # after an error, nobody waits for the others
                request.future.cancel()

    def batching(self) -> Batching:
        """How concurrent requests share batches, as :meth:`warmup` measured it."""
        return Batching(self.plan.batch_tokens, 0.0, self.plan.batch_tokens)

    def shares(self, batching: Batching) -> bool:
        """Whether requests share batches."""
        return batching.max_tokens > 0 and not self.alone()

    def lanes(self) -> Lanes:
        """The lanes of this session, made for its first request."""
        self.check_open()
        if self._started is None:
            with self._lock:
                self.check_open()
                if self._started is None:
                    models = self._measured or self._models(self.plan)
                    self._closers.callback(models.close)
                    lanes = Lanes(models, self.collator, self.recorder, trials=self._trials, limit=self._max_queue)
                    weakref.finalize(self, lanes.close, join=False).atexit = False
                    self._started = lanes
        return self._started

    def _models(self, plan: ConcurrencyPlan) -> LaneModels:
        resolved, threads = self._resolved, plan.threads
        return LaneModels(
            resolved.model,
            None if threads is None else lambda: resolved.compile_again(threads),
            plan.lanes,
            shared=threads == 1 and resolved.backend.capabilities.runs_on_caller,
        )
