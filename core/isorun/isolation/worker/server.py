"""The worker's side: answers requests for the backends of the environment that it runs in.

What channels share (executables and segments, by number) are dictionaries, whose single steps are atomic; a number
belongs to one request at a time.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import platform
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isorun.errors import BackendFailed
from isorun.isolation.worker import failures, wire
from isorun.isolation.worker.memory import Segment
from isorun.isolation.worker.values import Packing, is_plain, rebuild
from isorun.plugin import registry
from isorun.plugin.backend import Executable
from isorun.types import CompileConfig, LoweredModel, ModelInfo

_PR_SET_PDEATHSIG = 1
_REMEMBERED = 256  # requests and answers of each channel that need not be put into words again
_MOST_LOG = 1 << 24  # bytes: a runtime that writes a line for every run would fill the disk
_LOOK_AT_LOG = 1024  # requests of a channel between two looks


def main(number: int, parent: int) -> None:
    """Serve until the other side is gone.

    Args:
        number: of the inherited socket.
        parent: the id of the process that started this one.
    """
    _die_with(parent)
    faulthandler.enable(all_threads=False)  # so that the log ends with where a crash was
    trunk = socket.socket(fileno=number)
    incoming = wire.Receiver(trunk, files=True)
    about = {"python": platform.python_version(), "numpy": np.__version__}
    try:
        wire.send(trunk, wire.READY, os.getpid(), json.dumps(about).encode())
        incoming.receive()
        first = _Channel(Server(), socket.socket(fileno=_taken(incoming)))
    except wire.Closed:
        return
    threading.Thread(target=_serve_trunk, args=(first.server, incoming), daemon=True).start()
    # The first channel has the main thread, which some runtimes want to be imported and to compile in.
    first.serve()
    threading.Event().wait()  # the trunk ends the process


def _serve_trunk(server: Server, incoming: wire.Receiver) -> None:
    """Open channels as they are asked for. When the trunk ends, nobody waits for anything here any more."""
    try:
        while True:
            incoming.receive()
            channel = _Channel(server, socket.socket(fileno=_taken(incoming)))
            threading.Thread(target=channel.serve, daemon=True).start()
    except wire.Closed:
        os._exit(0)


class Server:
    """What all channels share, and the requests that are asked by name."""

    def __init__(self) -> None:
        self.executables: dict[int, tuple[str, Executable]] = {}
        self.segments: dict[int, Segment] = {}

    def names(self) -> list[str]:
        """The backends of this environment."""
        return registry.members()

    def backend(self, name: str) -> dict[str, Any]:
        """What a backend is and whether it can be used here."""
        backend = registry.get(name)
        return {
            "capabilities": asdict(backend.capabilities),
            "availability": asdict(registry.availability(backend)),
            "version": backend.version(),
        }

    def compile(self, number: int, name: str, model: dict[str, Any], config: dict[str, Any]) -> None:
        """Compile a model, to be known by a number."""
        info = ModelInfo.from_dict(model["info"])
        lowered = LoweredModel(**{**model, "path": Path(model["path"]), "info": info})
        self.executables[number] = name, registry.get(name).compile(lowered, CompileConfig(**config))

    def report(self, number: int) -> dict[str, Any]:
        """What the runtime says it did."""
        return asdict(self.executables[number][1].report())

    def close(self, number: int) -> None:
        """Let go of a model."""
        self.executables.pop(number)[1].close()


ANSWERS = ("names", "backend", "compile", "report", "close")
"""The methods of :class:`Server` that a session may ask for."""


class _Request(NamedTuple):
    executable: int
    outputs: list[str] | None
    feeds: Mapping[str, Any]


class _Answer(NamedTuple):
    text: bytes
    places: list[int]
    size: int


class _Channel:
    """One socket, one thread, one request after another."""

    def __init__(self, server: Server, channel: socket.socket) -> None:
        self.server = server
        self._channel = channel
        self._incoming = wire.Receiver(channel, files=True, eager=True)
        self._requests: dict[bytes, _Request] = {}
        self._answers: dict[tuple[Any, ...], _Answer] = {}
        self._waiting: tuple[_Answer, list[Any]] | None = None

    def serve(self) -> None:
        """Answer until the other side is gone."""
        served = 0
        try:
            while True:
                kind, number, text = self._incoming.receive()
                try:
                    answer = self._answer(kind, number, text)
                except BaseException as error:  # noqa: BLE001 - whatever it is, the session is to hear of it
                    answer = wire.FAILED, 0, json.dumps(failures.describe(error)).encode()
                wire.send(self._channel, *answer)
                served += 1
                if served % _LOOK_AT_LOG == 0:
                    _keep_log_short()
        except wire.Closed:
            self._channel.close()

    def _answer(self, kind: int, number: int, text: bytes) -> tuple[int, int, bytes]:
        if kind == wire.RUN:
            return self._run(number, text)
        if kind == wire.STORE:
            assert self._waiting is not None
            return self._store(number, *self._waiting)
        given = json.loads(text)
        if kind == wire.MAP:
            return self._map(number, **given)
        assert given["what"] in ANSWERS
        answer = getattr(self.server, given["what"])(**given["given"])
        return wire.DONE, 0, json.dumps(answer, default=_plain).encode()

    def _map(self, number: int, size: int, forget: list[int]) -> tuple[int, int, bytes]:
        self.server.segments[number] = Segment(number, _taken(self._incoming), size)
        self._requests.clear()  # their feeds may lie in what is forgotten
        for each in forget:
            self.server.segments.pop(each, None)
        return wire.DONE, 0, b""

    def _run(self, number: int, text: bytes) -> tuple[int, int, bytes]:
        request = self._requests.get(text) or self._request(text)
        name, executable = self.server.executables[request.executable]
        results = executable.run(request.outputs, request.feeds)
        key = tuple([(each.dtype, each.shape) if is_plain(each) else None for each in results])
        if answer := self._answers.get(key):
            return self._store(number, answer, results)
        packing = Packing()
        try:
            described = [packing.describe(each) for each in results]
        except TypeError as error:
            raise BackendFailed(f"{name} gave {error}") from error
        answer = _Answer(json.dumps(described).encode(), packing.places, packing.size)
        if None not in key:  # else the answer depends on values
            _remember(self._answers, key, answer)
        return self._store(number, answer, packing.arrays)

    def _request(self, text: bytes) -> _Request:
        described = json.loads(text)
        segment = self.server.segments[described["in"]]
        feeds = {name: rebuild(value, segment.view) for name, value in described["feeds"].items()}
        request = _Request(described["executable"], described["outputs"], feeds)
        if described["again"]:
            _remember(self._requests, text, request)
        return request

    def _store(self, number: int, answer: _Answer, arrays: list[Any]) -> tuple[int, int, bytes]:
        segment = self.server.segments[number]
        if answer.size > segment.size:
            self._waiting = answer, arrays
            return wire.NEED, answer.size, b""
        self._waiting = None
        for array, place in zip(arrays, answer.places, strict=True):
            segment.view(array.dtype, array.shape, place)[...] = array
        return wire.DONE, answer.size, answer.text


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = value


def _taken(incoming: wire.Receiver) -> int:
    file, incoming.file = incoming.file, None
    assert file is not None
    return file


def _plain(value: Any) -> Any:
    """NumPy's scalars in a report as Python's; what else is no plain data is an error."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} ({value!r}) is no plain data, which alone crosses to another process")


def _keep_log_short() -> None:
    """Both streams go to one file, opened for appending: what is written next begins it anew."""
    if os.fstat(sys.stderr.fileno()).st_size > _MOST_LOG:
        os.ftruncate(sys.stderr.fileno(), 0)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however it dies and whatever runs here."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it could be watched
        sys.exit("the process that started this worker is gone")
