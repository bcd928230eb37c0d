"""What every request passes first: keys, limits, a deadline, and the end of work for clients that have left."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isorun_serve import tracing
from isorun_serve.errors import ApiError, error_response, protocol_of, stopped
from isorun_serve.inputs import check_lists
from isorun_serve.settings import Settings
from isorun_serve.traffic import Traffic

REQUEST_ID, TIMEOUT = "x-request-id", "x-request-timeout"
OPEN_PATHS = ("/health", "/ready", "/v2/health/live", "/v2/health/ready")
"""Paths for which no key is needed, and no limit holds."""
_METRICS = "/metrics"  # what shows an overload is not refused for it
CLIENT_LEFT = 499  # in the metrics: nobody reads an answer
_TURNS = 4  # of the event loop, in which it sees that a client has left while the request waited to be read

_ID = re.compile(r"[\x21-\x7e]{1,128}")
_logger = logging.getLogger("isorun.serve")


class Gate:
    """Middleware of ASGI around the application.

    Args:
        app: the application.
        settings: the limits.
        traffic: counts requests.
        routes: the application's, by which requests are counted.
        sends_ids: whether answers get the id of their request; not where something in front adds it.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        traffic: Traffic,
        routes: Sequence[BaseRoute] = (),
        *,
        sends_ids: bool = True,
    ) -> None:
        self._app = app
        self._sends_ids = sends_ids
        self._routes = routes
        self._settings = settings
        self._traffic = traffic
        self._keys = [key.encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, method = time.perf_counter(), scope["method"]
        headers = Headers(scope=scope)
        # The web server drops what follows the headers of an answer to HEAD. A slash at the end means nothing: to
        # redirect from it, an address would have to be known, which a proxy hides.
        scope = {**scope, "method": "GET" if method == "HEAD" else method, "path": scope["path"].rstrip("/") or "/"}
        answer = _Answer(send, _request_id(headers), self._traffic, sends_id=self._sends_ids)
        scope.setdefault("state", {})["request_id"] = answer.request_id
        self._traffic.enter()
        try:
            with tracing.span(f"{method} {scope['path']}", headers) as span:
                await self._answer(scope, headers, receive, answer)
                span.set_attribute("http.response.status_code", answer.status)
                span.set_attribute("http.route", self._route(scope))
                span.set_attribute("isorun.request_id", answer.request_id)
        finally:
            self._traffic.leave(method, self._route(scope), answer.status, time.perf_counter() - started)

    def _route(self, scope: Scope) -> str:
        """The path with the names of its parameters; only those are counted apart."""
        matching = (route for route in self._routes if route.matches(scope)[0] is Match.FULL)
        route = scope.get("route") or next(matching, None)  # a request that is refused here has not been routed
        return getattr(route, "path", None) or "other"

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, answer: _Answer) -> None:
        try:
            try:
                await self._admitted(scope, headers, receive, answer)
            except TimeoutError as error:
                raise ApiError(504, "The request was not answered within its time", code="timeout") from error
        except _ClientLeft:
            answer.status = CLIENT_LEFT
        except asyncio.CancelledError:  # the grace period is over
            task = asyncio.current_task()
            if task is None or answer.started or not self._traffic.draining:
                raise
            task.uncancel()
            await error_response(stopped(), scope["path"])(scope, receive, answer.send)
        except Exception as error:  # the client gets an answer in any case
            if answer.started:
                raise
            if not isinstance(error, ApiError):
                _logger.exception("request %s failed", answer.request_id)
                error = ApiError(500, f"Internal error. The server's log has it with {answer.request_id}")
            await error_response(error, scope["path"])(scope, receive, answer.send)

    async def _admitted(self, scope: Scope, headers: Headers, receive: Receive, answer: _Answer) -> None:
        if scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, answer.send)
            return
        self._check_key(headers)
        if self._traffic.at_once > self._settings.max_requests and scope["path"] != _METRICS:
            raise ApiError(
                429,
                f"Overloaded: at most {self._settings.max_requests} requests may be open. Try again later",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        async with asyncio.timeout(self._timeout(headers)):
            if scope["method"] != "POST":
                await self._app(scope, receive, answer.send)
                return
            body = await self._body(headers, receive)
            if protocol_of(scope["path"]) != "oip":  # which has binary data behind its JSON
                check_lists(body)
            await _unless_left(receive, answer, lambda replay: self._app(scope, replay, answer.send), body)

    def _check_key(self, headers: Headers) -> None:
        if not self._keys:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        sent = [key if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        received = [text.strip().encode("latin-1") for text in sent]  # as headers are decoded: the bytes of UTF-8
        # Every key is compared, so that the time does not tell which one is close.
        if not sum(hmac.compare_digest(text, known) for text in received for known in self._keys):
            raise ApiError(
                401,
                "Missing or wrong API key. Send it in the header `Authorization: Bearer KEY`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _timeout(self, headers: Headers) -> float:
        text = headers.get(TIMEOUT)
        if text is None:
            return self._settings.timeout
        try:
            seconds = float(text)
        except ValueError:
            seconds = 0.0
        if not seconds > 0:
            raise ApiError(400, f"The header {TIMEOUT} must be a number of seconds above 0, got {text!r}")
        return min(seconds, self._settings.timeout)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._settings.max_body
        if (encoding := headers.get("content-encoding", "identity").lower()) != "identity":
            raise ApiError(415, f"Content-Encoding {encoding!r} is not supported. Send the body uncompressed")
        # The HTTP library checks that it is a number. int() rejects long ones.
        if float(headers.get("content-length", 0)) > limit:
            raise _too_large(limit)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._settings.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientLeft
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            seconds = self._settings.body_timeout
            message_text = f"The body did not arrive within {seconds:g} s"
            raise ApiError(408, message_text, headers={"Connection": "close"}) from None


class _ClientLeft(Exception):
    """The client closed the connection before it was answered."""


class _Answer:
    """Sends an answer with the request's id, and knows how far it is."""

    def __init__(self, send: Send, request_id: str, traffic: Traffic, *, sends_id: bool) -> None:
        self._send = send
        self._sends_id = sends_id
        self._traffic = traffic
        self.request_id = request_id
        self.started = self.ended = False
        self.status = 500

    async def send(self, message: Message) -> None:
        """Pass on a part of the answer."""
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            headers = MutableHeaders(scope=message)
            if self._sends_id:
                headers[REQUEST_ID] = self.request_id
            if self._traffic.draining:
                headers["connection"] = "close"
        elif not message.get("more_body", False):
            self.ended = True
        await self._send(message)


async def _unless_left(
    receive: Receive, answer: _Answer, run: Callable[[Receive], Awaitable[None]], body: bytes
) -> None:
    """Run the application with a body that was read; cancel it if the client closes the connection.

    Raises:
        _ClientLeft: it did.
    """
    task = asyncio.current_task()
    assert task is not None
    has_left = is_done = False

    def on_message(future: asyncio.Future[Message]) -> None:
        nonlocal has_left
        if is_done or answer.ended or future.cancelled() or future.exception() is not None:
            return
        has_left = True  # the body is complete: nothing else can come
        task.cancel()

    messages: Iterable[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return next(iter(messages), {"type": "http.disconnect"})

    watcher: asyncio.Future[Any] = asyncio.ensure_future(receive())
    watcher.add_done_callback(on_message)
    try:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await run(replay)
    except asyncio.CancelledError:
        if not has_left:
            raise
        task.uncancel()
        raise _ClientLeft from None
    finally:
        is_done = True
        watcher.cancel()


def _too_large(limit: int) -> ApiError:
    # The connection stays open and the web server drops the rest of the body: clients read an answer after they have
    # sent everything, and closing before that resets the connection.
    return ApiError(413, f"The body must have at most {limit} bytes. Send several requests")


def _request_id(headers: Headers) -> str:
    sent = headers.get(REQUEST_ID, "")
    return sent if _ID.fullmatch(sent) else uuid.uuid4().hex
