"""The web server around the application: uvicorn, with an end that answers what was accepted."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import math
import re
import socket
import sys
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from isorun.cli import signals
from isorun.errors import IsorunError
from isorun_serve.traffic import Traffic

_LINGER = 0.5  # seconds
_MAX_HEAD = 2**19  # bytes of a request before its body; httptools copies a header for each part of it that arrives
_UPGRADE = re.compile(rb"\A([A-Z]{1,10} [^\r\n]+ HTTP/1\.1\r\n(?:[^\r\n]+\r\n)*?)upgrade:[^\r\n]*\r\n", re.IGNORECASE)


def serve(
    app: FastAPI,
    *,
    host: str,
    port: int,
    grace: float,
    drain: float,
    idle: float,
    access_log: bool,
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        app: the application.
        host, port: where to listen; port 0 for any that is free.
        grace: the maximum time in seconds for answering what was accepted, after the signal.
        drain: how long requests are still accepted after the signal, while ``/ready`` says no.
        idle: how long a connection stays open without a request.
        access_log: whether each request is logged.

    Raises:
        IsorunError: the models could not be warmed up.
    """
    _allow_many_files()
    logging = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
    logging["loggers"]["isorun"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    config = uvicorn.Config(
        app,
        host,
        port,
        log_config=logging,
        http=_connections(idle),
        ws="none",
        lifespan="on",
        access_log=access_log,
        server_header=False,
        timeout_keep_alive=math.ceil(idle),
        timeout_graceful_shutdown=math.ceil(grace),
    )
    server = _Server(config, app, drain)
    signals.handle(server.handle_exit)  # after which uvicorn, once it has ended, sends itself the signal again
    server.run()
    if server.failure is not None:
        raise server.failure


def check_address(host: str, port: int) -> None:
    """Reject an address that this process cannot listen on, before models are opened.

    Raises:
        IsorunError: it is in use, of another machine, or not allowed.
    """
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, sys.platform != "win32")
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as asyncio does
                probe.bind(address)
    except OSError as error:
        reason = f"Cannot listen on {host}, port {port}: {error.strerror}"
        raise IsorunError(f"{reason}. Choose another address with --host and --port") from error


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: FastAPI, drain: float) -> None:
        super().__init__(config)
        self._app = app
        self._traffic: Traffic = app.state.traffic
        self._drain = drain
        self.failure: BaseException | None = None
        """Why the models could not be warmed up."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and stop again if the models cannot be warmed up."""
        await super().startup(sockets)
        if not self.should_exit:
            self._app.state.warming.add_done_callback(self._on_warm)

    def _on_warm(self, warming: asyncio.Task[None]) -> None:
        if not warming.cancelled() and warming.exception() is not None:
            self.failure = warming.exception()
            self.should_exit = True
        else:
            gc.freeze()  # what is open stays open: to scan it takes the garbage collector 0.15 s each time

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Tell clients and load balancers first, and then stop."""
        self._traffic.draining = True
        end = asyncio.get_running_loop().time() + (self._drain if self.failure is None else 0.0)
        while asyncio.get_running_loop().time() < end and not self.force_exit:
            await asyncio.sleep(0.05)
        await self._accept_last()
        await super().shutdown(sockets)
        if self.force_exit:  # by a second Ctrl-C: uvicorn would leave both out, and log that the application failed
            for task in self.server_state.tasks:
                task.cancel()
            await self.lifespan.shutdown()

    async def _accept_last(self) -> None:
        """Close the listening sockets, and accept what has connected by then, which closing alone would reset."""
        loop, last = asyncio.get_running_loop(), []
        opened = [sock for server in self.servers for sock in server.sockets]
        copies = [socket.fromfd(sock.fileno(), sock.family, sock.type) for sock in opened]
        for server in self.servers:
            server.close()
        for listening in copies:
            listening.setblocking(False)
            with listening, contextlib.suppress(OSError):  # once there is no other
                while True:
                    last.append(listening.accept()[0])
        create: Any = self.config.http_protocol_class
        for connection in last:
            connection.setblocking(False)
            created = partial(create, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
            await loop.connect_accepted_socket(created, connection)


def _connections(idle: float) -> type[asyncio.Protocol]:
    """The class of connections: one that has not sent a whole header in some time, or sends a long one, is closed.

    uvicorn's own limit holds only until the first byte of a request. At the end, it would close connections without a
    request at once, and reset those whose request is on its way.
    """
    base: Any = AutoHTTPProtocol

    class Connection(base):  # type: ignore[misc]  # one of two, by what is installed
        _head: int | None = None  # the bytes of an incomplete header, and of at most one packet before it

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._expect_request()

        def data_received(self, data: bytes) -> None:
            # A parser that sees an offer of HTTP/2, as Java's clients send it, drops the body of the request.
            if self.cycle is None or self.cycle.response_complete:  # elsewhere, this is part of a body
                data = _UPGRADE.sub(rb"\1", data, count=1)
            super().data_received(data)
            if self._head is not None:
                self._head += len(data)
                if self._head > _MAX_HEAD:
                    self.send_400_response(f"The headers must have at most {_MAX_HEAD} bytes.")

        def on_message_begin(self) -> None:  # httptools; h11 has a limit
            super().on_message_begin()
            self._head = 0

        def on_headers_complete(self) -> None:
            self._head = None
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._timer.cancel()
            self._expect_request()

        def shutdown(self) -> None:
            is_used = self.cycle is not None and not self.cycle.response_complete
            asyncio.get_running_loop().call_later(0 if is_used else _LINGER, super().shutdown)

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def _expect_request(self) -> None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(idle, self._close_unless_used, self.cycle)

        def _close_unless_used(self, cycle: Any) -> None:
            if self.cycle is cycle and (cycle is None or cycle.response_complete):  # no request since
                self.transport.abort()  # close() would wait for a client that does not read its last answer

    return Connection


def _allow_many_files() -> None:
    """Raise the limit of open files, which connections count towards, as far as this process may."""
    if sys.platform == "win32":  # which has no such limit
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65_536), hard)
        )
