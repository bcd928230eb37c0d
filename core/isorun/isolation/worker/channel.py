"""A channel to a worker: a socket, a segment for feeds and one for results, one request after another.

The description of feeds is serialized once for each combination of dtypes and shapes; later requests send the same
bytes and copy the arrays only. The same holds for results.
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
from isorun.isolation.worker.memory import Segment
from isorun.isolation.worker.process import DURING_A_CALL, DiedIdle, WorkerProcess
from isorun.isolation.worker.values import Packing, is_plain, rebuild, remember
from isorun.types import Feeds

_CHECK_SECONDS = 3.0  # how often a waiting call checks whether the worker is stopped


class _Request(NamedTuple):
    text: bytes
    views: list[np.ndarray]


class Channel:
    """A socket that a thread of the worker serves.

    Attributes:
        sound: whether the last request has ended as a whole, so that another may be sent: its answer has been read, and
            both sides use the same memory. A signal may interrupt it anywhere.
    """

    def __init__(self, ours: socket.socket, process: WorkerProcess) -> None:
        self.sound: bool = True
        self._socket = ours
        self._process = process
        self._incoming = wire.Receiver(ours, waited=self._waited)
        self._seconds: float | None = None
        self._deadline = 0.0
        self._warned = False
        self._feeds: Segment | None = None
        self._results: Segment | None = None
        self._requests: dict[tuple[Any, ...], _Request] = {}
        self._described: dict[bytes, list[dict[str, Any]]] = {}

    def ask(self, method: str, arguments: dict[str, Any], seconds: float | None = None) -> Any:
        """Call a method of the worker's :class:`isorun.isolation.worker.server.Server`. Raises ``WorkerTimeout`` if
        there is no reply within so many seconds: the worker was killed."""
        text = json.dumps({"method": method, "arguments": arguments}).encode()
        self._start(seconds)
        _, _, reply = self._exchange(wire.ASK, 0, text)
        answer = json.loads(reply)
        self.sound = True
        return answer

    def run(
        self, executable: int, output_names: Sequence[str] | None, feeds: Feeds, seconds: float | None = None
    ) -> list[Any]:
        """Run once: see :meth:`isorun.plugin.backend.Executable.run`. Raises ``WorkerTimeout`` if it took more than so
        many seconds: the worker was killed."""
        self._start(seconds)
        try:
            request, arrays = self._request(executable, output_names, feeds)
        except InvalidFeeds:  # nothing was sent
            self.sound = True
            raise
        for view, array in zip(request.views, arrays, strict=True):
            view[...] = array
        results = self._results = self._results or self._map(wire.RESULTS, 0)
        kind, size, text = self._exchange(wire.RUN, 0, request.text)
        if kind == wire.NEED:
            results = self._results = self._map(wire.RESULTS, size)
            _, _, text = self._exchange(wire.STORE)
        described = self._described.get(text)
        if described is None:
            described = json.loads(text)
            if all("array" in output for output in described):  # otherwise the description depends on values
                remember(self._described, text, described)
        rebuilt = [rebuild(output, lambda *where: results.view(*where).copy()) for output in described]
        self.sound = True
        return rebuilt

    def close(self) -> None:
        """Close the socket and unmap the segments."""
        self._socket.close()
        self._feeds = self._results = None
        self._requests.clear()

    def _request(
        self, executable: int, output_names: Sequence[str] | None, feeds: Feeds
    ) -> tuple[_Request, Iterable[Any]]:
        names = None if output_names is None else tuple(output_names)
        try:
            key = executable, names, tuple([(name, array.dtype, array.shape) for name, array in feeds.items()])
            return self._requests[key], feeds.values()
        except (KeyError, AttributeError):  # it is new, or a feed is not an array
            pass
        packing = Packing()
        described = {}
        for name, value in feeds.items():
            try:
                described[name] = packing.describe(value)
            except TypeError as error:
                raise InvalidFeeds(f"Input {name!r}: {error}") from error
        if self._feeds is None or packing.size > self._feeds.size:
            self._requests.clear()
            self._feeds = self._map(wire.FEEDS, packing.size)
        reusable = all(map(is_plain, feeds.values()))
        text = json.dumps({"executable": executable, "outputs": names, "feeds": described, "reusable": reusable})
        offsets = zip(packing.arrays, packing.offsets, strict=True)
        request = _Request(
            text.encode(), [self._feeds.view(array.dtype, array.shape, offset) for array, offset in offsets]
        )
        if reusable:
            remember(self._requests, key, request)
        return request, packing.arrays

    def _map(self, use: int, size: int) -> Segment:
        """A new segment that the worker uses for feeds or results."""
        segment, file = Segment.create(size)
        try:
            self._exchange(wire.MAP, use, json.dumps({"size": segment.size}).encode(), [file])
        finally:
            os.close(file)
        return segment

    def _start(self, seconds: float | None) -> None:
        """Begin a request that may take so many seconds in all."""
        self.sound = False
        self._seconds = seconds
        self._warned = False
        if seconds is not None:
            self._deadline = time.monotonic() + seconds
        self._socket.settimeout(_CHECK_SECONDS if seconds is None else min(seconds, _CHECK_SECONDS))

    def _waited(self) -> None:
        """Called at intervals while a request waits."""
        if self._seconds is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise self._process.timed_out(self._seconds)
            self._socket.settimeout(min(max(left, 0.001), _CHECK_SECONDS))
        self._warned = self._warned or self._process.warn_if_stopped()

    def _exchange(
        self, kind: int, number: int = 0, text: bytes = b"", files: Sequence[int] = ()
    ) -> tuple[int, int, bytes]:
        sent = False
        try:
            wire.send(self._socket, kind, number, text, files, self._waited)
            sent = True
            reply = self._incoming.receive()
        except wire.Closed:
            if sent:
                raise self._process.died(DURING_A_CALL) from None
            raise self._process.died("while it was idle", DiedIdle) from None
        if reply[0] == wire.FAILED:
            self.sound = True
            raise failures.rebuild(json.loads(reply[2]))
        return reply
