"""Health, readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from isorun.session.scheduling.metrics import prometheus
from isorun_serve.models import Models
from isorun_serve.traffic import Traffic

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def router(models: Models, traffic: Traffic) -> APIRouter:
    """``/health``, ``/ready`` and ``/metrics``."""
    routes = APIRouter(tags=["Monitoring"])

    @routes.get("/health")
    async def health() -> Response:
        """Say that the process answers."""
        return JSONResponse({"status": "ok"})

    @routes.get("/ready")
    async def ready() -> Response:
        """Say whether the models are warm and requests are accepted: the time to send them."""
        is_ready = models.ready and not traffic.draining
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Counts and times of models and requests, for Prometheus."""
        sessions = [({**traffic.labels, "model": served.name}, served.session.metrics()) for served in models]
        return PlainTextResponse(prometheus(sessions) + traffic.prometheus(), media_type=_PROMETHEUS)

    return routes
