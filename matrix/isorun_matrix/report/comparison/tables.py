"""A comparison of runs in the terminal and in Markdown (:mod:`isorun_matrix.report.comparison.compare`)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from isorun_matrix.measurement.statistics.verdicts import Change
from isorun_matrix.report import markdown, terminal
from isorun_matrix.report.columns import Column, columns
from isorun_matrix.report.comparison.compare import ComparedCell, Comparison
from isorun_matrix.report.formatting import NONE, counts
from isorun_matrix.text import printable

_VALUE = 48  # maximum characters of a value
_STYLES = {"slower": "bold red", "faster": "bold green", "too few rounds": "yellow"}


def render(comparison: Comparison, width: int) -> RenderableType:
    """The runs, a block of cells for each model and shape, and how many changed; ``width`` characters wide."""
    shown = _columns(comparison)
    blocks = {
        title: [[Text(printable(text), style=_STYLES.get(text, "")) for text in row] for row in rows]
        for title, rows in _blocks(comparison, shown).items()
    }
    return Stack(
        *(Text(printable(line)) for line in _runs(comparison)),
        Text(),
        *terminal.tables(*_heads(shown), blocks, width),
        Text(),
        *(Text(printable(line), style="bold") for line in _tallies(comparison)),
    )


def as_markdown(comparison: Comparison) -> str:
    """The same as GitHub's Markdown."""
    lines = ["# Runs compared", "", *map(_item, _runs(comparison)), ""]
    shown = _columns(comparison)
    for title, rows in _blocks(comparison, shown).items():
        escaped = [[*map(markdown.escaped, row)] for row in rows]
        lines += [f"## {markdown.escaped(title)}", "", *markdown.table(*_heads(shown), escaped), ""]
    return "\n".join([*lines, *(f"{markdown.escaped(line)}." for line in _tallies(comparison))]) + "\n"


def _item(line: str) -> str:
    """An item of a list with the indentation of a line."""
    text = line.lstrip()
    return f"{line[: len(line) - len(text)]}- {markdown.escaped(text)}"


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
    for number, run in enumerate(comparison.runs, start=1):
        cpu = run.environment.cpu
        gpus = "".join(f", {gpu.name}" for gpu in run.environment.gpus)
        yield f"run {number}: {run.folder}, {cpu.model}, {cpu.usable_cores} cores{gpus}, {run.created}"
        for name, (first, own) in run.differences.items():
            yield f"  {name}: {_value(first)} in run 1, {_value(own)} in run {number}"
    yield f"sessions: {comparison.sessions}"
    if not comparison.sessions.runs:
        yield (
            "  Give earlier runs with --history (three or more in all), or measure both in one session with "
            "`isorun matrix ab`."
        )


def _columns(comparison: Comparison) -> list[Column]:
    """What is shown of a cell in a run, without the status, which the verdict replaces."""
    results = [result for cell in comparison.cells for result in cell.results if result is not None]
    return columns("compare", results)[:-1]


def _heads(shown: Sequence[Column]) -> tuple[list[str], list[bool]]:
    """The headers, and which of them are of numbers."""
    headers = [*(column.header for column in shown[:2]), "run", *(column.header for column in shown[2:])]
    return [*headers, "time", "status"], [False, False, False, *(column.numeric for column in shown[2:]), True, False]


def _blocks(comparison: Comparison, shown: Sequence[Column]) -> dict[str, list[list[str]]]:
    blocks: dict[str, list[list[str]]] = {}
    for cell in comparison.cells:
        rows = blocks.setdefault(f"{cell.cell.model}, {cell.cell.shape}", [])
        rows += [_row(cell, number, shown[2:]) for number in range(len(comparison.runs))]
    return blocks


def _row(cell: ComparedCell, number: int, shown: Sequence[Column]) -> list[str]:
    result, change = cell.results[number], cell.changes[number]
    named = ["", ""] if number else [cell.cell.label, cell.cell.precision]
    figures = [NONE if result is None else column.text(result) for column in shown]
    return [*named, str(number + 1), *figures, _ratio(change), cell.verdict(number)]


def _ratio(change: Change | None) -> str:
    if change is None or math.isnan(change.ratio):
        return ""
    return f"{change.ratio:.2f} x" + (" CPU" if change.of == "cpu" else "")


def _value(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 3]}..."
