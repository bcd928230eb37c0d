"""The data of the plots in an HTML report. The page draws them; nothing here knows plotly.

A plot is a mapping with ``title`` and ``kind``: ``boxes`` (``rows``) or ``lines`` (``series`` of ``name``, ``x``, ``y``
and ``correct``, whether the outputs are correct; titles of both axes, ``marks`` for points without lines, and
``categories`` if x has names, ``near`` if y need not start at 0; a series may have ``above`` and ``below``, the ends
of intervals, and ``front`` for a line without points). Names are escaped, since plotly reads HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from markupsafe import escape

from isorun_matrix.measurement.statistics.latencies import samples_needed
from isorun_matrix.report import summary, tradeoff
from isorun_matrix.report.summary import Group
from isorun_matrix.results.records import CellResult

_WIDE = 8.0  # a ratio of values above which an axis is logarithmic

Plot = dict[str, Any]


def boxes(group: Group) -> Plot | None:
    """The latencies of a group: boxes from the 5th to the 95th percentile, or from the minimum to the maximum where
    there are too few runs; ``None`` if nothing was measured.

    Returns:
        ``rows`` in the order of the cells (``name``, five percentiles, ``p99``, ``medians`` of the rounds, and
        ``correct``, whether the outputs are correct), and ``log``.
    """
    rows = []
    for cell in group.cells:
        if cell.result is None:
            continue
        latency, spread = cell.result.latency_ms, cell.result.spread_ms
        row: dict[str, Any] = {"name": str(escape(cell.name)), "correct": _correct(cell), "p99": latency.p99}
        row |= {**spread, "medians": [measured.p50 for measured in cell.result.rounds if measured.used]}
        if latency.samples < samples_needed(95):
            row |= {"p5": latency.min, "p95": latency.max}
        rows.append(row)
    if not rows:
        return None
    return {
        "kind": "boxes",
        "title": "Latency",
        "rows": rows,
        "log": _wide(row[end] for row in rows for end in ("p5", "p95")),
    }


def accuracy(group: Group) -> Plot | None:
    """Latency against error, where cells differ in precision: what is both slower and less accurate is no choice."""
    shown = [(cell, cell.result) for cell in group.cells if cell.result is not None and cell.result.parity.rms]
    if len({cell.precision for cell, _ in shown}) < 2:
        return None
    series = [
        _series(cell.name, [result.latency_ms.p50], [result.parity.rms], _correct(cell)) for cell, result in shown
    ]
    return _lines("Latency and error", series, "p50, ms", "relative rms error", marks=True)


def quality(group: Group) -> Plot | None:
    """Latency against what vectors keep, with a line along the cells that no other one beats in both; ``None`` if it
    was not measured in several cells."""
    shown = [(cell, cell.result, cell.result.quality) for cell in group.cells if cell.result and cell.result.quality]
    if len(shown) < 2:
        return None
    series = [
        _series(cell.name, [result.latency_ms.p50], [kept.share.value], _correct(cell))
        | {"above": [kept.share.high - kept.share.value], "below": [kept.share.value - kept.share.low]}
        for cell, result, kept in shown
    ]
    front = tradeoff.best(group)
    if len(front) > 1:
        kept_by = {cell.id: kept.share.value for cell, _, kept in shown}
        line = _series(
            "beaten by none", [summary.median(cell) for cell in front], [kept_by[cell.id] for cell in front], True
        )
        series.append(line | {"front": True})
    title = f"kept of {shown[0][2].whole}, share"
    return _lines("Latency and what vectors keep", series, "p50, ms", title, marks=True, near=True)


def load(group: Group) -> Plot | None:
    """The 99th percentile at each rate that a search measured, the median where it measured a rate repeatedly."""
    series, bounds = [], set()
    for cell in group.cells:
        for load in cell.loads:
            trials = (
                [] if load.result is None else [trial for trial in load.result.trials if trial.rate and trial.p99_ms]
            )
            if trials:
                bounds.add(load.load["p99_ms"])
                at: dict[float, list[float]] = {}
                for trial in trials:
                    at.setdefault(trial.rate or 0, []).append(trial.p99_ms or 0)
                rates, times = sorted(at), [median(at[rate]) for rate in sorted(at)]
                series.append(_series(f"{cell.name}, {load.name}", rates, times, _correct(cell)))
    axes = ("requests per second", "99th percentile, ms")
    return _lines("Latency under load", series, *axes, bounds=sorted(bounds)) if series else None


def scaling(groups: Sequence[Group]) -> list[Plot]:
    """For each model with several shapes, real tokens a second of each cell at each shape, by batch and length."""
    charts = []
    for model in dict.fromkeys(group.model for group in groups):
        cells = [cell for group in groups if group.model == model for cell in group.cells]
        rated = [(cell, cell.result.throughput.tokens_per_s) for cell in cells if cell.result is not None]
        sizes = {cell.shape: (cell.batch, cell.sequence or 0) for cell, rate in rated if rate is not None}
        if len(sizes) < 2:
            continue
        series = []
        for name in dict.fromkeys(cell.name for cell, _ in rated):
            named = [(cell, rate) for cell, rate in rated if cell.name == name and rate is not None]
            named.sort(key=lambda pair: sizes[pair[0].shape])
            wrong = [cell.shape for cell, _ in named if not _correct(cell)]
            if named:
                x, y = zip(*((str(escape(cell.shape)), rate) for cell, rate in named), strict=True)
                some = f" (wrong outputs at {', '.join(wrong)})" if 0 < len(wrong) < len(named) else ""
                series.append(_series(f"{name}{some}", x, y, len(wrong) < len(named)))
        shapes = [str(escape(shape)) for shape in sorted(sizes, key=lambda shape: sizes[shape])]
        title = f"{model}: throughput"
        charts.append(_lines(title, series, "batch x tokens", "real tokens/s", categories=shapes))
    return charts


def _series(name: str, x: Sequence[Any], y: Sequence[Any], correct: bool) -> dict[str, Any]:
    shown = name if correct else f"{name} (wrong outputs)"
    return {"name": str(escape(shown)), "x": list(x), "y": list(y), "correct": correct}


def _lines(title: str, series: list[dict[str, Any]], x: str, y: str, **more: Any) -> Plot:
    names = "categories" in more
    log_x = not names and _wide(value for line in series for value in line["x"])
    log_y = "near" not in more and _wide(value for line in series for value in line["y"])
    return {"kind": "lines", "title": title, "series": series, "x": x, "y": y, "log_x": log_x, "log_y": log_y, **more}


def _wide(values: Iterable[float]) -> bool:
    numbers = list(values)
    return min(numbers) > 0 and max(numbers) > _WIDE * min(numbers)


def _correct(cell: CellResult) -> bool:
    return cell.status in ("ok", "quality-failed")
