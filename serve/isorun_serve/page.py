"""The page at the root: what is served, on what, and how it is doing. It has no scripts and loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

import isorun
from isorun.session.scheduling.metrics import Histogram
from isorun_serve.models import Models, Served
from isorun_serve.traffic import Traffic

_SECONDS = 5  # between two loads of the page
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;margin:.5rem 0 1.5rem;width:100%}"
    "th,td{text-align:left;padding:.3rem .8rem;border-bottom:1px solid #8886}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    "pre{overflow-x:auto}"
)
_MODELS = ("model", "task", "backend", "precision", "-waiting", "-running", "-requests", "-wait p50", "-wait p99")
_ROUTES = ("path", "-requests", "-mean", "-p50 up to", "-p99 up to")


def router(models: Models, traffic: Traffic) -> APIRouter:
    """``GET /``."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    async def page() -> Response:
        return HTMLResponse(_page(models, traffic), headers={"Content-Security-Policy": _POLICY})

    return routes


def _page(models: Models, traffic: Traffic) -> str:
    state = "stopping" if traffic.draining else "ready" if models.ready else "warming up"
    paths = [
        (route, times.count, _time(times.mean), _time(times.percentile(50)), _time(times.percentile(99)))
        for route, times in sorted(traffic.seconds().items())
    ]
    details = "".join(
        f"<details><summary>{escape(served.name)}</summary><pre>{escape(str(served.provenance))}</pre></details>"
        for served in models
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>isorun: {state}</title>'
        f'<meta http-equiv="refresh" content="{_SECONDS}"><style>{_STYLE}</style></head><body>'
        f"<h1>isorun {escape(isorun.__version__)}: {state}</h1>"
        f"<p>{traffic.at_once} requests are open. "
        '<a href="docs">API</a>, <a href="metrics">metrics</a></p>'
        f"<h2>Models</h2>{_table(_MODELS, map(_row, models))}{details}"
        f"<h2>Requests</h2>{_table(_ROUTES, paths)}</body></html>"
    )


def _row(served: Served) -> tuple[object, ...]:
    metrics, provenance = served.session.metrics(), served.provenance
    wait: Histogram = metrics.queue_seconds
    return (
        *(served.name, served.task, f"{provenance.backend} on {provenance.device}", provenance.precision),
        *(metrics.waiting, metrics.running, metrics.requests),
        *(_time(wait.percentile(50)), _time(wait.percentile(99))),
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; the names of columns with numbers begin with ``-``."""
    kinds = [' class="n"' if column.startswith("-") else "" for column in columns]
    head = "".join(
        f"<th{kind}>{escape(column.removeprefix('-'))}</th>" for column, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{escape(str(cell))}</td>' for cell, kind in zip(row, kinds, strict=True))}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
