"""A comparison of runs as a document (:mod:`isorun_matrix.report.comparison.compare`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from isorun_matrix.measurement.statistics.verdicts import Change
from isorun_matrix.report.columns import Column, columns
from isorun_matrix.report.comparison.compare import ComparedCell, Comparison
from isorun_matrix.report.document import Document, Table, texts
from isorun_matrix.report.formatting import NONE, counts

_VALUE = 48  # maximum characters of a value
_STYLES = {"slower": "red", "faster": "green", "too few rounds": "yellow"}


def document(comparison: Comparison) -> Document:
    """The runs, a block of cells for each model and shape, and how many changed."""
    results = [result for cell in comparison.cells for result in cell.results if result is not None]
    shown = columns("compare", results)[:-1]  # the verdict replaces the status
    headers = [*(column.header for column in shown[:2]), "run", *(column.header for column in shown[2:])]
    numeric = [False, False, False, *(column.numeric for column in shown[2:])]
    rows: dict[str, list[list[Text]]] = {}
    for cell in comparison.cells:
        block = rows.setdefault(f"{cell.cell.model}, {cell.cell.shape}", [])
        block += texts((_row(cell, number, shown[2:]) for number in range(len(comparison.runs))), _STYLES)
    table = Table([*headers, "time", "status"], [*numeric, True, False], rows)
    return Document("Runs compared", [*_runs(comparison)], [table], [*_tallies(comparison)])


def _tallies(comparison: Comparison) -> Iterator[str]:
    """For each run but the first, how many cells became faster, slower, or something else."""
    for number in range(1, len(comparison.runs)):
        words = Counter(_change(cell, number) for cell in comparison.cells)
        yield f"run {number + 1} compared with run 1: {counts(words)}"


def _change(cell: ComparedCell, number: int) -> str:
    first, result = cell.results[0], cell.results[number]
    if result is None or first is None:
        return "new" if result else "missing"
    return cell.verdict(number) + (f" (was {first.status})" if first.status != result.status else "")


def _runs(comparison: Comparison) -> Iterator[str]:
    for number, (run, differences) in enumerate(zip(comparison.runs, comparison.differences, strict=True), start=1):
        cpu = run.environment.cpu
        gpus = "".join(f", {gpu.name}" for gpu in run.environment.gpus)
        yield f"run {number}: {run.folder}, {cpu.model}, {cpu.usable_cores} cores{gpus}, {run.created}"
        for name, (first, own) in differences.items():
            yield f"  {name}: {_value(first)} in run 1, {_value(own)} in run {number}"
    yield f"sessions: {comparison.sessions}"
    if not comparison.sessions.runs:
        yield (
            "  Give earlier runs with --history (three or more in all), or measure both in one session with "
            "`isorun matrix ab`."
        )


def _row(cell: ComparedCell, number: int, shown: Sequence[Column]) -> list[str]:
    result, change = cell.results[number], cell.changes[number]
    named = ["", ""] if number else [cell.cell.label, cell.cell.precision]
    figures = [NONE if result is None else column.text(result) for column in shown]
    return [*named, str(number + 1), *figures, _ratio(change), cell.verdict(number)]


def _ratio(change: Change | None) -> str:
    if change is None or change.ratio is None:
        return ""
    return f"{change.ratio:.2f} x" + (" CPU" if change.of == "cpu" else "")


def _value(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 3]}..."
