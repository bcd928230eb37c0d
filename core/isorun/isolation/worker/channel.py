"""One line to a worker: a socket, a segment for feeds, one request after another.

A request of arrays is put into words once; from then on the same words go out for arrays of the same types and
shapes, and only the arrays are copied. The same holds for answers.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.isolation.worker import failures, wire
from isorun.isolation.worker.memory import Pool, Segment
from isorun.isolation.worker.process import DiedIdle, WorkerProcess
from isorun.isolation.worker.values import Packing, is_plain, rebuild
from isorun.types import Feeds

_REMEMBERED = 256  # requests, and answers, that need not be put into words again
_LOOK = 3.0  # seconds of waiting between two looks at whether the worker is stopped
_SMALL = 1 << 15  # bytes of results that are copied out: that takes less time than to lend them


class _Plan(NamedTuple):
    text: bytes
    views: list[np.ndarray]


class _Answer(NamedTuple):
    described: list[dict[str, Any]]
    tensors: list[tuple[np.dtype[Any], tuple[int, ...], int]] | None  # where all results are arrays of numbers


class Channel:
    """A socket that a thread of the worker serves.

    Args:
        ours: the socket.
        pool: the segments that all channels share.
        process: the worker's.

    Attributes:
        sound: whether the answer to the last request has come, so that there may be another.
    """

    def __init__(self, ours: socket.socket, pool: Pool, process: WorkerProcess) -> None:
        self.sound = True
        self._socket = ours
        self._pool = pool
        self._process = process
        self._incoming = wire.Receiver(ours, waited=self._waited)
        self._seconds: float | None = None
        self._deadline = 0.0
        self._interval = 0.0
        self._warned = False
        self._feeds: Segment | None = None
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._answers: dict[bytes, _Answer] = {}

    def ask(self, what: str, given: dict[str, Any], seconds: float | None = None) -> Any:
        """Ask by name for an answer within so many seconds; ``None`` for no limit.

        Raises:
            WorkerTimeout: it did not come. The worker was killed.
        """
        text = json.dumps({"what": what, "given": given}).encode()
        self._start(seconds)
        _, _, answer = self._exchange(wire.ASK, 0, text)
        return json.loads(answer)

    def run(
        self, executable: int, output_names: Sequence[str] | None, feeds: Feeds, seconds: float | None = None
    ) -> list[Any]:
        """Run once: see :meth:`isorun.plugin.backend.Executable.run`.

        Raises:
            WorkerTimeout: it took more than so many seconds. The worker was killed.
        """
        self._start(seconds)
        plan, arrays = self._plan(executable, output_names, feeds)
        for view, array in zip(plan.views, arrays, strict=True):
            view[...] = array
        segment = self._pool.take() or self._map(0)
        try:
            kind, size, text = self._exchange(wire.RUN, segment.number, plan.text)
            if kind == wire.NEED:
                self._pool.forget(segment)
                segment = self._map(size)
                _, size, text = self._exchange(wire.STORE, segment.number)
            answer = self._answers.get(text) or self._answer(text)
        except BaseException:
            # Without an answer, the worker may yet write there.
            (self._pool.free if self.sound else self._pool.forget)(segment)
            raise
        return self._results(answer, segment, size)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()
        if self._feeds is not None:
            self._pool.forget(self._feeds)
        self._feeds = None
        self._plans.clear()

    def _plan(self, executable: int, output_names: Sequence[str] | None, feeds: Feeds) -> tuple[_Plan, Iterable[Any]]:
        names = None if output_names is None else tuple(output_names)
        try:
            key = executable, names, tuple([(name, each.dtype, each.shape) for name, each in feeds.items()])
            return self._plans[key], feeds.values()
        except (KeyError, AttributeError):  # it is new, or a feed is no array
            pass
        packing = Packing()
        described = {}
        for name, value in feeds.items():
            try:
                described[name] = packing.describe(value)
            except TypeError as error:
                raise InvalidFeeds(f"Input {name!r} is {error}") from error
        if self._feeds is None or packing.size > self._feeds.size:
            self._plans.clear()
            if self._feeds is not None:
                self._pool.forget(self._feeds)
            self._feeds = self._map(packing.size)
        again = all(map(is_plain, feeds.values()))
        request = {"executable": executable, "outputs": names, "in": self._feeds.number, "feeds": described}
        text = json.dumps({**request, "again": again}).encode()
        places = zip(packing.arrays, packing.places, strict=True)
        plan = _Plan(text, [self._feeds.view(array.dtype, array.shape, place) for array, place in places])
        if again:
            if len(self._plans) >= _REMEMBERED:
                self._plans.clear()
            self._plans[key] = plan
        return plan, packing.arrays

    def _answer(self, text: bytes) -> _Answer:
        described = json.loads(text)
        if not all("array" in each for each in described):
            return _Answer(described, None)
        tensors = [(np.dtype(each["array"]), tuple(each["shape"]), each["at"]) for each in described]
        if len(self._answers) >= _REMEMBERED:
            self._answers.clear()
        self._answers[text] = answer = _Answer(described, tensors)
        return answer

    def _results(self, answer: _Answer, segment: Segment, size: int) -> list[Any]:
        memory = self._pool.lend(segment, size) if size > _SMALL else None
        if memory is not None:
            if answer.tensors is not None:
                return [np.ndarray(shape, dtype, memory, at) for dtype, shape, at in answer.tensors]
            return [rebuild(each, lambda *where: _view(memory, *where)) for each in answer.described]
        if answer.tensors is not None:
            results = [segment.view(*where).copy() for where in answer.tensors]
        else:
            results = [rebuild(each, lambda *where: segment.view(*where).copy()) for each in answer.described]
        self._pool.free(segment)
        return results

    def _map(self, size: int) -> Segment:
        """A new segment that the worker knows."""
        segment, file = self._pool.new(size)
        try:
            given = {"size": segment.size, "forget": self._pool.forgotten()}
            self._exchange(wire.MAP, segment.number, json.dumps(given).encode(), [file])
        finally:
            os.close(file)
        return segment

    def _start(self, seconds: float | None) -> None:
        """Begin a request, which may take so many seconds in all."""
        self._seconds = seconds
        self._warned = False
        if seconds is not None:
            self._deadline = time.monotonic() + seconds
        self._wake_after(_LOOK if seconds is None else min(seconds, _LOOK))

    def _wake_after(self, seconds: float) -> None:
        if seconds != self._interval:
            wire.wake_after(self._socket, seconds)
            self._interval = seconds

    def _waited(self) -> None:
        """Once in a while, during a wait."""
        if self._seconds is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise self._process.timed_out(self._seconds)
            self._wake_after(min(max(left, 0.001), _LOOK))
        self._warned = self._warned or self._process.warn_if_stopped()

    def _exchange(self, kind: int, number: int, text: bytes = b"", files: Sequence[int] = ()) -> tuple[int, int, bytes]:
        self.sound = False
        sent = False
        try:
            wire.send(self._socket, kind, number, text, files, self._waited)
            sent = True
            answer = self._incoming.receive()
        except wire.Closed:
            if sent:
                raise self._process.died("while it was at work") from None
            raise self._process.died("while it was idle", DiedIdle) from None
        self.sound = True
        if answer[0] == wire.FAILED:
            raise failures.rebuild(json.loads(answer[2]))
        return answer


def _view(memory: np.ndarray, dtype: np.dtype[Any], shape: tuple[int, ...], at: int) -> np.ndarray:
    return np.ndarray(shape, dtype, memory, at)
