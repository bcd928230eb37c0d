"""What answers requests: threads that call ``Session.run``, or the scheduler of a session."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from isorun import Session
from isorun.types import Feeds
from isorun_matrix.spec.load_scenario import Load

Done = Callable[[], None]


class Target(Protocol):
    """What answers requests."""

    def submit(self, index: int, done: Done) -> None:
        """Answer a request, whose number selects its feeds, and call ``done`` from any thread. Does not wait."""

    def close(self) -> None:
        """Stop; raises what a request raised."""


class SessionTarget:
    """Threads that call ``Session.run``, each with one request at a time, from one queue."""

    def __init__(self, session: Session, feeds: Sequence[Feeds], workers: int) -> None:
        self._session, self._feeds = session, feeds
        self._errors: list[BaseException] = []
        self._waiting: queue.SimpleQueue[tuple[int, Done] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, index: int, done: Done) -> None:
        self._waiting.put((index, done))

    def _work(self) -> None:
        while (request := self._waiting.get()) is not None:
            index, done = request
            try:
                if not self._errors:  # else the rest is answered at once, and the first error is raised
                    self._session.run(None, self._feeds[index % len(self._feeds)])
            except Exception as error:  # noqa: BLE001 - raised by close()
                self._errors.append(error)
            done()

    def close(self) -> None:
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


class SchedulerTarget:
    """``Session.arun``, which runs concurrent requests as :meth:`isorun.Session.warmup` measured to be best."""

    def __init__(self, session: Session, feeds: Sequence[Feeds]) -> None:
        session.warmup(feeds)
        self._session, self._feeds = session, feeds
        self._errors: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def submit(self, index: int, done: Done) -> None:
        request = self._feeds[index % len(self._feeds)]
        answer: Future[Any] = asyncio.run_coroutine_threadsafe(self._session.arun(None, request), self._loop)
        answer.add_done_callback(lambda answer: self._finish(answer, done))

    def _finish(self, answer: Future[Any], done: Done) -> None:
        if error := answer.exception():
            self._errors.append(error)
        done()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._errors:
            raise self._errors[0]


def target_of(session: Session, feeds: Sequence[Feeds], scenario: Load) -> Target:
    """What answers the requests of a scenario."""
    if scenario.through == "scheduler":
        return SchedulerTarget(session, feeds)
    return SessionTarget(session, feeds, scenario.workers)
