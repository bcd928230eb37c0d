"""The application: all protocols over the same models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

import isorun
from isorun.errors import IsorunError
from isorun_serve import monitoring, page
from isorun_serve.errors import ApiError, error_response
from isorun_serve.gate import REQUEST_ID, Gate
from isorun_serve.models import Models
from isorun_serve.protocols import oip, openai, rerank, tei
from isorun_serve.settings import Settings
from isorun_serve.traffic import Traffic

_logger = logging.getLogger("isorun.serve")


def create_app(models: Models, settings: Settings | None = None, *, replica: str | None = None) -> FastAPI:
    """The application for models that are open. It warms them up when it starts, and closes them when it stops.

    Args:
        models: the models.
        settings: the limits; ``None`` for the defaults.
        replica: the name of this one of several replicas behind Ray's proxy, for metrics. The proxy adds the header
            ``X-Request-Id`` to answers.
    """
    settings = settings or Settings()
    traffic = Traffic({} if replica is None else {"replica": replica})

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        app.state.warming = warming = asyncio.create_task(_warm_up(models, settings))
        yield
        warming.cancel()
        await asyncio.wait([warming])
        await asyncio.to_thread(models.close)

    app = FastAPIOffline(
        redirect_slashes=False,
        redoc_url=None,
        static_url="/static",
        title="isorun",
        version=isorun.__version__,
        summary="Embeddings, rerankers, classifiers and other models.",
        lifespan=lifespan,
    )
    app.state.traffic = traffic
    routers = [page.router(models, traffic), monitoring.router(models, traffic)]
    routers += [protocol.router(models, settings) for protocol in (openai, rerank, oip, tei)]
    for router in routers:
        app.include_router(router)
    for kind in (ApiError, IsorunError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer_error)
    routes = [route for router in routers for route in router.routes]
    app.add_middleware(Gate, settings=settings, traffic=traffic, routes=routes, sends_ids=replica is None)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID, "retry-after", oip.HEADER_LENGTH],
        )
    return app


async def _warm_up(models: Models, settings: Settings) -> None:
    if settings.warmup:
        await asyncio.to_thread(models.warm_up, measure=settings.measure)
    models.accepting = models.ready = True
    _logger.info("ready: %s", ", ".join(f"{served.name} ({served.task})" for served in models))


async def _answer_error(request: Request, error: Exception) -> Response:
    kind = request.headers.get("content-type", "")
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    if first.get("loc") == ("body",) and first["type"] != "missing" and "json" not in kind:
        error = ApiError(415, f"The body must be JSON, with the header Content-Type: application/json, got {kind!r}")
    return error_response(error, request.url.path)
