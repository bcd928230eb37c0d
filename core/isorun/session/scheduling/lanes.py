"""The threads that run waiting requests: as many batches at once as the machine serves best."""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import ExitStack
from functools import partial
from typing import Any

from isorun.compilation.compiled_model import CLOSED
from isorun.errors import IsorunError, SessionClosed, WorkerDied, WorkerTimeout
from isorun.session.scheduling.call_queue import CallQueue
from isorun.session.scheduling.calls import Call, Request
from isorun.session.scheduling.collator import Collator
from isorun.session.scheduling.lane_models import LaneModels
from isorun.session.scheduling.metrics import Recorder
from isorun.session.scheduling.trials import Trials
from isorun.system import portable, threads

_logger = logging.getLogger("isorun")


class Lanes:
    """Runs the requests of a queue.

    There is a thread for each lane and one more, which assembles the next batch meanwhile. They start when there is
    work for them, and do not keep the session alive. If a batch fails, its requests run again one by one, so that an
    error affects only the request that caused it.

    Args:
        trials: tries whether rows may share batches; ``None`` if that is known.
        limit: the maximum number of waiting rows.
    """

    def __init__(
        self,
        models: LaneModels,
        collator: Collator,
        recorder: Recorder,
        *,
        trials: Trials | None = None,
        limit: int = sys.maxsize,
    ) -> None:
        self.models = models
        self._trials = trials
        self._collator = collator
        self._recorder = recorder
        self._limit = limit
        self._weak = weakref.ref(self)
        self._queue = CallQueue(limit)
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._resting = 0  # threads that wait for requests
        self._holding: dict[int, Call] = {}  # by thread, in the order of batches: what does not run yet
        self._idle = list(range(models.lanes))
        self._warmups: list[deque[Callable[[], None]]] = [deque() for _ in range(models.lanes + 1)]
        self._taking = False
        lock = threading.RLock()  # a session that is collected during these calls closes its lanes on this thread
        self._arrived, self._ended = threads.Condition(lock), threads.Condition(lock)
        _alive.add(self)

    def check_room(self, rows: int) -> None:
        """Raise ``QueueFull`` for a call of so many rows now if :meth:`put` would, before anything is done for it."""
        with self._arrived:
            admitted = self._queue.admits(rows)
        if not admitted:
            self._recorder.reject(rows, self._limit)

    def put(self, call: Call, requests: Sequence[Request]) -> None:
        """Submit requests as part of a call, all of them or none.

        A future that is cancelled while its request waits takes it out of the queue.

        Raises:
            QueueFull: too many requests are waiting.
            IsorunError: the session is closed, or the system starts no thread.
        """
        with self._arrived:
            if self._closed:
                raise SessionClosed(CLOSED)
            try:
                if admitted := self._queue.put(call, requests):
                    self._start_threads()
                    self._arrived.notify(len(requests))
                    self._recorder.enter(len(requests))
            except BaseException:  # no thread starts, or a handler of a signal raised
                for request in requests:
                    self._queue.remove(call, request.number)
                raise
        if not admitted:
            self._recorder.reject(len(requests), self._limit)
        for request in requests:
            # The future must not keep the models alive.
            request.future.add_done_callback(partial(_on_done, self._weak, call, request.number))

    def hurry(self, call: Call) -> None:
        """Run what waits of a call: no further request is expected soon."""
        with self._arrived:
            call.hurry = True
            self._arrived.notify()

    def wait_for(self, call: Call) -> None:
        """Wait for the batches of a call that run."""
        with self._ended:
            self._ended.wait_for(lambda: not call.taken)

    def warm(self, runs: Sequence[Sequence[Callable[[], object]]]) -> None:
        """Make runs on the threads, a sequence on each, and wait: the first run on a thread takes longer than later
        ones. Requests that arrive meanwhile go first.

        Raises:
            As the runs.
        """
        if threading.current_thread() in self._threads:  # it would wait for itself
            for run in runs[0]:
                run()
            return
        futures: list[Future[None]] = []
        with self._arrived:
            if self._closed:
                raise SessionClosed(CLOSED)
            self._start_threads(len(runs))
            for warmups, of_thread in zip(self._warmups, runs, strict=False):
                for run in of_thread:
                    futures.append(Future())
                    warmups.append(partial(_fulfil, futures[-1], run))
            self._arrived.notify_all()
        wait(futures)
        for future in futures:
            future.result()

    def close(self, *, cancel: bool = False, join: bool = True) -> None:
        """Accept no further requests, and end the threads.

        Args:
            cancel: cancel waiting requests instead of running them.
            join: wait for the threads, except this very one.
        """
        with self._arrived:
            self._closed = True
            waiting = self._queue.requests() if cancel else []
            self._arrived.notify_all()
        with ExitStack() as stack:  # all of it, whatever the callbacks of futures raise
            for thread in self._threads if join else ():
                if thread is not threading.current_thread():
                    stack.callback(thread.join)
            for request in reversed(waiting):
                stack.callback(request.future.cancel)

    def _start_threads(self, least: int = 0) -> None:
        """Start threads up to ``least``, and one more if requests wait and none rests. Raises ``IsorunError`` if the
        system starts no further one, and there are fewer than ``least``, or none."""
        useful = max(least, len(self._threads) + 1 if len(self._queue) > self._resting else 0)
        while (index := len(self._threads)) < min(useful, len(self._warmups)):
            try:
                self._threads.append(threads.start(self._serve, index, name=f"isorun-{index}"))
            except IsorunError as error:
                if index < max(least, 1):
                    raise
                _logger.debug("requests share %d threads: %s", index, error)
                return

    def _serve(self, index: int) -> None:
        # No request is held while waiting: through tracebacks it would keep alive what closes a stream.
        while work := self._next(index):
            if callable(work):
                work()
            else:
                self._answer(work)
                with self._ended:
                    self._holding.pop(threading.get_ident(), None)
                    work[0].call.taken -= 1
                    self._ended.notify_all()
            del work

    def _next(self, index: int) -> list[Request] | Callable[[], None] | None:
        """Wait for work; ``None`` once the lanes are closed and nothing waits."""
        warmups = self._warmups[index]
        with self._arrived:
            while True:
                now = time.monotonic()
                self._taking = True
                requests = self._queue.take(now, self._may_run, all_due=self._closed)
                self._taking = False
                if requests:
                    requests[0].call.taken += 1
                    self._holding[threading.get_ident()] = requests[0].call
                    self._start_threads()
                    return requests
                if warmups:
                    return warmups.popleft()
                if self._closed and not len(self._queue):
                    self._arrived.notify_all()  # those that could not run what waited
                    return None
                due = self._queue.next_due(self._may_run)
                self._resting += 1
                self._arrived.wait(None if due is None else min(max(0.0, due - now), threading.TIMEOUT_MAX))
                self._resting -= 1

    def _may_run(self, call: Call) -> bool:
        """Whether a thread may take a batch of a call. Only one thread holds a batch that may not run yet."""
        at_once = self._at_once(call)
        return call.taken < at_once or (call.taken == at_once and not self._holding)

    def _at_once(self, call: Call) -> int:
        return 1 if call.all_threads and self.models.divided else self.models.lanes

    def _answer(self, requests: list[Request]) -> None:
        try:
            feeds = self._collator.batch(requests)
            lane, all_threads = self._occupy(requests[0].call)
            try:
                starting = [request for request in requests if self._start(request)]
                if not starting:
                    return
                if len(starting) < len(requests):
                    requests, feeds = starting, self._collator.batch(starting)
                model = self.models.all_threads if all_threads else self.models.of_lane(lane)
                parts = [requests] if self._trials is None else self._trials.parts(requests, model.run)
                if len(parts) == 1:
                    with self._recorder.run(*self._collator.sizes(feeds)):
                        outputs = model.run(requests[0].outputs, feeds)
            finally:
                self._vacate(requests[0].call, lane)
            if len(parts) > 1:
                for part in parts:
                    self._answer(part)
                return
            results = list(zip(requests, self._collator.split(outputs, requests), strict=True))
        except BaseException as error:  # noqa: BLE001  # delivered through the requests' futures
            # A time-out is not repeated: the request that caused it would take as long again, and stop another worker.
            if len(requests) > 1 and not isinstance(error, WorkerTimeout | WorkerDied):
                for request in requests:
                    self._answer([request])
                return
            for request in requests:
                self._recorder.fail()
                request.future.set_exception(error)
            return
        for request, result in results:
            request.future.set_result(result)

    def _occupy(self, call: Call) -> tuple[int, bool]:
        """Wait for a lane, in the order of batches. Returns it, and whether to use all threads."""
        thread = threading.get_ident()
        with self._ended:
            self._holding.setdefault(thread, call)
            self._ended.wait_for(lambda: self._idle and self._first_holder() == thread)
            del self._holding[thread]
            if self._holding:
                self._ended.notify_all()
            self._arrived.notify()  # another thread may assemble the next batch
            all_threads = call.all_threads
            if all_threads is None:
                all_threads = len(self._idle) == self.models.lanes and not len(self._queue)
            call.running += 1
            return self._idle.pop(), all_threads

    def _first_holder(self) -> int | None:
        may_run = (thread for thread, call in self._holding.items() if call.running < self._at_once(call))
        return next(may_run, None)

    def _vacate(self, call: Call, lane: int) -> None:
        with self._ended:
            call.running -= 1
            self._idle.append(lane)
            self._ended.notify_all()

    def _start(self, request: Request) -> bool:
        """Whether to run a request: somebody waits for it."""
        if request.future.running():  # again, since its batch failed
            if request.call.abandoned:
                request.future.set_exception(CancelledError())
            return not request.call.abandoned
        if request.call.abandoned:
            request.future.cancel()
        if request.future.set_running_or_notify_cancel():
            self._recorder.leave(time.monotonic() - request.arrived)
            return True
        self._recorder.drop()
        return False

    def _remove_cancelled(self, call: Call, number: int, future: Future[list[Any]]) -> None:
        with self._arrived:  # by a collection during take(), this thread may hold the lock already
            removed = not self._taking and self._queue.remove(call, number)
        if removed:
            self._recorder.drop()
            future.set_running_or_notify_cancel()  # those who wait for it learn that it is cancelled


def _on_done(lanes: weakref.ref[Lanes], call: Call, number: int, future: Future[list[Any]]) -> None:
    if future.cancelled() and (lane := lanes()):
        lane._remove_cancelled(call, number, future)


def _fulfil(future: Future[None], work: Callable[[], object]) -> None:
    try:
        work()
        future.set_result(None)
    except BaseException as error:  # noqa: BLE001  # raised where it is waited for
        future.set_exception(error)


_alive: weakref.WeakSet[Lanes] = weakref.WeakSet()  # including closed ones whose threads still run


@atexit.register
def _close_all() -> None:
    """Python stops daemon threads anywhere at exit; a runtime that is running then aborts the process."""
    for lanes in list(_alive):
        lanes.close(cancel=True)


portable.after_fork_in_child(_alive.clear)  # threads do not survive a fork
