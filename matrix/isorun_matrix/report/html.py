"""One HTML file that holds everything: figures, plots and plotly's own code. It needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2
import markupsafe

from isorun_matrix.measurement.statistics import samples_needed
from isorun_matrix.report import summary as view
from isorun_matrix.results.records import STATUSES

_WIDE = 8.0
"""Latencies that differ by more than this are drawn on a logarithmic axis."""


def render(document: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """The report of a run.

    Args:
        document: its environment and cells.
        run: what ``run.json`` holds: the spec and the date.
    """
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("isorun_matrix.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(view=view, statuses=STATUSES)
    found = view.groups(document)
    return environment.get_template("report.html.j2").render(
        document=document,
        run=run,
        groups=[(group, f"{group.model}/{group.shape}", plot(group)) for group in found],
        plotly=get_plotlyjs(),
    )


def plot(group: view.Group) -> dict[str, Any] | None:
    """What the page draws for a group: boxes from the 5th to the 95th percentile, of fewer runs than those need from
    the least to the greatest; ``None`` without a figure.

    Returns:
        ``rows`` (``name``, escaped since plotly reads HTML, the five percentiles, ``p99`` and ``right``), first cell
        first, and ``log``.
    """
    rows = [
        {"name": str(markupsafe.escape(view.short(cell))), "right": cell["status"] == "ok", "p99": view.p(cell, 99)}
        | cell["spread_ms"]
        | _ends(cell["latency_ms"])
        for cell in group.cells
        if cell["spread_ms"]
    ]
    if not rows:
        return None
    ends = [row["p5"] for row in rows] + [row["p95"] for row in rows]
    return {"rows": rows, "log": max(ends) > _WIDE * min(ends)}


def _ends(latency: Mapping[str, Any]) -> dict[str, float]:
    """Where a box ends, if not at percentiles."""
    return {"p5": latency["min"], "p95": latency["max"]} if latency["samples"] < samples_needed(95) else {}
