"""The data of the plots in an HTML report. The page draws them; nothing here knows plotly.

A plot is a mapping with ``kind``: ``boxes`` (``rows``) or ``lines`` (``series`` of ``name``, ``x``, ``y`` and ``text``,
titles of both axes, and ``marks`` for points without lines). Names are escaped, since plotly reads HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from markupsafe import escape

from isorun_matrix.measurement.statistics.latencies import samples_needed
from isorun_matrix.report.summary import Group
from isorun_matrix.results.records import CellResult

_WIDE = 8.0  # a ratio of values above which an axis is logarithmic

Plot = dict[str, Any]


def boxes(group: Group) -> Plot | None:
    """The latencies of a group: boxes from the 5th to the 95th percentile, or from the minimum to the maximum where
    there are too few runs; ``None`` if nothing was measured.

    Returns:
        ``rows`` in the order of the cells (``name``, five percentiles, ``p99``, ``medians`` of the rounds, and
        ``right``, whether the outputs are correct), and ``log``.
    """
    rows = []
    for cell in group.cells:
        if cell.result is None:
            continue
        latency, spread = cell.result.latency_ms, cell.result.spread_ms
        row: dict[str, Any] = {"name": str(escape(cell.name)), "right": cell.status == "ok", "p99": latency.p99}
        row |= vars(spread) | {"medians": [each.p50 for each in cell.result.rounds if each.used]}
        if latency.samples < samples_needed(95):
            row |= {"p5": latency.min, "p95": latency.max}
        rows.append(row)
    if not rows:
        return None
    return {"kind": "boxes", "rows": rows, "log": _wide(row[end] for row in rows for end in ("p5", "p95"))}


def accuracy(group: Group) -> Plot | None:
    """Latency against error, where cells differ in precision: what is both slower and less accurate is no choice."""
    shown = [cell for cell in group.cells if cell.result is not None and cell.result.parity.rms]
    if len({cell.precision for cell in shown}) < 2:
        return None
    series = [_series(cell.name, [_median(cell)], [_error(cell)]) | {"right": cell.status == "ok"} for cell in shown]
    return _lines(series, "p50, ms", "relative rms error", marks=True)


def load(group: Group) -> Plot | None:
    """The 99th percentile at each rate that a search measured, the median where it measured a rate repeatedly."""
    series, bounds = [], set()
    for cell in group.cells:
        for found in cell.loads:
            trials = [] if found.result is None else [each for each in found.result.trials if each.rate and each.p99_ms]
            if trials:
                bounds.add(found.load["p99_ms"])
                at: dict[float, list[float]] = {}
                for trial in trials:
                    at.setdefault(trial.rate or 0, []).append(trial.p99_ms or 0)
                rates, times = sorted(at), [median(at[rate]) for rate in sorted(at)]
                series.append(_series(f"{cell.name}, {found.name}", rates, times))
    return _lines(series, "requests per second", "99th percentile, ms", bounds=sorted(bounds)) if series else None


def scaling(groups: Sequence[Group]) -> list[tuple[str, Plot]]:
    """For each model with several shapes, real tokens a second of each cell against the tokens of a batch."""
    found = []
    for model in dict.fromkeys(group.model for group in groups):
        lines: dict[str, list[tuple[int, float]]] = {}
        for cell in (cell for group in groups if group.model == model for cell in group.cells):
            rate = None if cell.result is None else cell.result.throughput.tokens_per_s
            if rate is not None and cell.sequence is not None:
                lines.setdefault(cell.name, []).append((cell.batch * cell.sequence, rate))
        if any(len({x for x, _ in points}) > 1 for points in lines.values()):
            series = [_series(name, *zip(*sorted(points), strict=True)) for name, points in lines.items()]
            found.append((model, _lines(series, "batch x sequence", "real tokens per second")))
    return found


def _series(name: str, x: Sequence[Any], y: Sequence[Any]) -> dict[str, Any]:
    return {"name": str(escape(name)), "x": list(x), "y": list(y)}


def _lines(series: list[dict[str, Any]], x: str, y: str, **more: Any) -> Plot:
    logs = {f"log_{axis}": _wide(value for each in series for value in each[axis]) for axis in ("x", "y")}
    return {"kind": "lines", "series": series, "x": x, "y": y, **logs, **more}


def _wide(values: Iterable[float]) -> bool:
    found = list(values)
    return min(found) > 0 and max(found) > _WIDE * min(found)


def _median(cell: CellResult) -> float | None:
    return None if cell.result is None else cell.result.latency_ms.p50


def _error(cell: CellResult) -> float | None:
    return None if cell.result is None else cell.result.parity.rms
