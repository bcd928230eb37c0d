"""One HTML file that contains everything: figures, plots and plotly's code. It needs no network."""

from __future__ import annotations

from typing import Any

import jinja2
import markupsafe

from isorun_matrix.measurement.statistics import samples_needed
from isorun_matrix.report import facts, summary
from isorun_matrix.report.columns import columns
from isorun_matrix.results.records import STATUSES, Run

_WIDE = 8.0  # a ratio of latencies above which the axis is logarithmic


def render(run: Run) -> str:
    """The report of a run."""
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("isorun_matrix.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(summary=summary, facts=facts, columns=columns, statuses=STATUSES)
    groups = [(group, f"{group.model}/{group.shape}", plot(group)) for group in summary.groups(run.cells)]
    template = environment.get_template("report.html.j2")
    return template.render(run=run, groups=groups, plotly=get_plotlyjs())


def plot(group: summary.Group) -> dict[str, Any] | None:
    """The data of a group's plot: boxes from the 5th to the 95th percentile, or from the minimum to the maximum where
    there are too few runs; ``None`` if nothing was measured.

    Returns:
        ``rows`` in the order of the cells (``name``, escaped since plotly reads HTML, five percentiles, ``p99`` and
        ``right``, whether the outputs are correct), and ``log``.
    """
    rows = []
    for cell in group.cells:
        if cell.result is None:
            continue
        latency, spread = cell.result.latency_ms, cell.result.spread_ms
        row = {"name": str(markupsafe.escape(cell.name)), "right": cell.status == "ok", "p99": latency.p99}
        row |= vars(spread)
        if latency.samples < samples_needed(95):
            row |= {"p5": latency.min, "p95": latency.max}
        rows.append(row)
    if not rows:
        return None
    ends = [row[end] for row in rows for end in ("p5", "p95")]
    return {"rows": rows, "log": max(ends) > _WIDE * min(ends)}
