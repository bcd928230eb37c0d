"""The worker's side: serves requests for the backends of the environment that it runs in.

Channels share the executables by number. A dictionary suffices without a lock: its single operations are atomic, and
a number belongs to one request at a time.
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isorun.isolation.worker import failures, wire
from isorun.isolation.worker.memory import Segment
from isorun.isolation.worker.values import Packing, is_plain, rebuild, remember
from isorun.plugin import listing, registry, validation
from isorun.plugin.backend import Backend, Executable
from isorun.plugin.description import Description
from isorun.plugin.plugin_errors import called, violation, wrong_type
from isorun.system.cache import Cache
from isorun.types import CompileConfig, LoweredModel, ModelInfo

_MAX_LOG = 1 << 24  # bytes: a runtime that writes a line for every run would fill the memory
_LOG_CHECK_INTERVAL = 1024  # requests of a channel


def main(number: int) -> None:
    """Serve the inherited socket of a file descriptor until the other side is gone."""
    faulthandler.enable(all_threads=False)  # so that the log ends with the place of a crash
    trunk = socket.socket(fileno=number)
    incoming = wire.Receiver(trunk, files=True)
    versions = {"python": platform.python_version(), "numpy": np.__version__}
    try:
        wire.send(trunk, wire.READY, os.getpid(), json.dumps(versions).encode())
        incoming.receive()
        first = _Channel(Server(), socket.socket(fileno=_take_file(incoming)))
    except wire.Closed:
        return
    threading.Thread(target=_serve_trunk, args=(first.server, incoming), daemon=True).start()
    # The first channel has the main thread, in which some runtimes must be imported and compile.
    first.serve()
    threading.Event().wait()  # the end of the trunk ends the process


def _serve_trunk(server: Server, incoming: wire.Receiver) -> None:
    """Open channels on request. End the process at the end of the trunk."""
    try:
        while True:
            incoming.receive()
            channel = _Channel(server, socket.socket(fileno=_take_file(incoming)))
            threading.Thread(target=channel.serve, daemon=True).start()
    except wire.Closed:
        os._exit(0)


class Server:
    """The executables of all channels, and the methods that a session may call by name."""

    def __init__(self) -> None:
        self.executables: dict[int, tuple[Backend, Executable]] = {}

    def candidates(self) -> list[dict[str, Any]]:
        """The candidates of ``backend="auto"`` here: :func:`isorun.plugin.listing.candidates`."""
        return [description.as_dict() for description in listing.candidates(Cache())]

    def descriptions(self) -> list[dict[str, Any]]:
        """The backends of this environment in full."""
        return [description.as_dict() for description in listing.descriptions()]

    def backend(self, name: str) -> dict[str, Any]:
        """The description of a backend."""
        return Description.of(registry.get(name)).as_dict()

    def accelerators(self, name: str, device: str) -> list[str]:
        """The accelerators that a device of a backend may be."""
        return list(registry.accelerators(registry.get(name), device))

    def compile(self, number: int, name: str, model: dict[str, Any], config: dict[str, Any]) -> None:
        """Compile a model and keep it under a number."""
        info = ModelInfo.from_dict(model["info"])
        lowered = LoweredModel(**{**model, "path": Path(model["path"]), "info": info})
        backend = registry.get(name)
        executable = called(backend, "compile()", backend.compile, lowered, CompileConfig(**config))
        if problem := validation.executable_problem(executable):
            raise violation(backend, "compile()", problem)
        self.executables[number] = backend, executable

    def report(self, number: int) -> dict[str, Any]:
        """The runtime's report on an executable."""
        backend, executable = self.executables[number]
        report = called(backend, "report()", executable.report)
        if problem := validation.report_problem(report):
            raise violation(backend, "report()", problem)
        return asdict(report)

    def close(self, number: int) -> None:
        """Release an executable."""
        backend, executable = self.executables.pop(number)
        called(backend, "close()", executable.close)


METHODS = ("candidates", "descriptions", "backend", "accelerators", "compile", "report", "close")
"""The methods of :class:`Server` that a session may call."""


class _Request(NamedTuple):
    executable: int
    outputs: list[str]
    feeds: Mapping[str, Any]


class _Results(NamedTuple):
    text: bytes
    offsets: list[int]
    size: int


class _Channel:
    """One socket, one thread, one request after another."""

    def __init__(self, server: Server, channel: socket.socket) -> None:
        self.server = server
        self._channel = channel
        self._incoming = wire.Receiver(channel, files=True)
        self._segments: dict[int, Segment] = {}
        self._requests: dict[bytes, _Request] = {}
        self._results: dict[tuple[Any, ...], _Results] = {}
        self._unstored: tuple[_Results, list[Any]] | None = None

    def serve(self) -> None:
        """Reply to requests until the other side is gone."""
        served = 0
        try:
            while True:
                kind, number, text = self._incoming.receive()
                try:
                    reply = self._reply(kind, number, text)
                except BaseException as error:  # noqa: BLE001 - raised again in the session
                    reply = wire.FAILED, 0, json.dumps(failures.describe(error)).encode()
                wire.send(self._channel, *reply)
                served += 1
                if served % _LOG_CHECK_INTERVAL == 0:
                    _truncate_log()
        except wire.Closed:
            self._channel.close()

    def _reply(self, kind: int, number: int, text: bytes) -> tuple[int, int, bytes]:
        if kind == wire.RUN:
            return self._run(text)
        if kind == wire.STORE:
            assert self._unstored is not None
            return self._store(*self._unstored)
        if kind == wire.MAP:
            self._segments[number] = Segment(_take_file(self._incoming), json.loads(text)["size"])
            self._requests.clear()  # their feeds may lie in the segment that is replaced
            return wire.DONE, 0, b""
        request = json.loads(text)
        assert request["method"] in METHODS
        result = getattr(self.server, request["method"])(**request["arguments"])
        return wire.DONE, 0, json.dumps(result, default=_plain).encode()

    def _run(self, text: bytes) -> tuple[int, int, bytes]:
        request = self._requests.get(text) or self._parse(text)
        backend, executable = self.server.executables[request.executable]
        # A list and a mapping that the plugin may change: the request is kept for the next run.
        outputs: Any = called(backend, "run()", executable.run, [*request.outputs], {**request.feeds})
        if type(outputs) is not list:
            raise wrong_type(backend, "run()", "a list", outputs)
        key = tuple([(output.dtype, output.shape) if is_plain(output) else None for output in outputs])
        if results := self._results.get(key):
            return self._store(results, outputs)
        packing = Packing()
        try:
            described = [packing.describe(output) for output in outputs]
        except TypeError as error:
            raise violation(backend, "run()", f"valid outputs ({error})") from error
        results = _Results(json.dumps(described).encode(), packing.offsets, packing.size)
        if None not in key:  # otherwise the description depends on values
            remember(self._results, key, results)
        return self._store(results, packing.arrays)

    def _parse(self, text: bytes) -> _Request:
        described = json.loads(text)
        segment = self._segments[wire.FEEDS]
        feeds = {name: rebuild(value, segment.view) for name, value in described["feeds"].items()}
        request = _Request(described["executable"], described["outputs"], feeds)
        if described["reusable"]:
            remember(self._requests, text, request)
        return request

    def _store(self, results: _Results, arrays: list[Any]) -> tuple[int, int, bytes]:
        segment = self._segments[wire.RESULTS]
        if results.size > segment.size:
            self._unstored = results, arrays
            return wire.NEED, results.size, b""
        self._unstored = None
        for array, offset in zip(arrays, results.offsets, strict=True):
            segment.view(array.dtype, array.shape, offset)[...] = array
        return wire.DONE, 0, results.text


def _take_file(incoming: wire.Receiver) -> int:
    file, incoming.file = incoming.file, None
    assert file is not None
    return file


def _plain(value: Any) -> Any:
    """NumPy scalars as Python scalars, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a report must hold JSON types and NumPy scalars, got {type(value).__name__} ({value!r})")


def _truncate_log() -> None:
    """Both streams append to one file, so the next line starts it again."""
    if os.fstat(sys.stderr.fileno()).st_size > _MAX_LOG:
        os.ftruncate(sys.stderr.fileno(), 0)
