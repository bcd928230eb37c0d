"""A cell over several runs: its p50 in each, and a plot of characters."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isorun.errors import SpecError
from isorun_matrix.report import summary
from isorun_matrix.report.formatting import NONE, number
from isorun_matrix.results.records import Run
from isorun_matrix.text import printable

_BARS = "▁▂▃▄▅▆▇█"


def render(runs: Sequence[Run], patterns: Sequence[str], width: int) -> RenderableType:
    """A line for each cell, with a column for each run, the oldest first.

    Args:
        runs: in any order.
        patterns: shell wildcards; a cell is shown if its id matches one.
        width: of the output, in characters; where the runs do not fit, the oldest ones are in the plot only.

    Raises:
        SpecError: no cell matches.
    """
    ordered = sorted(runs, key=lambda run: run.created)
    by_id = [{cell.id: cell for cell in run.cells if not cell.control} for run in ordered]
    names = [
        name
        for name in dict.fromkeys(name for cells in by_id for name in cells)
        if any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*") for pattern in patterns)
    ]
    if not names:
        raise SpecError(f"No cell matches {' or '.join(map(repr, patterns))}")
    left = width - min(32, max(map(len, names))) - len(runs) - 4
    shown = range(max(0, len(runs) - max(1, left // 8)), len(runs))
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("p50 ms", overflow="fold", max_width=32)
    table.add_column("")
    for index in shown:
        table.add_column(f"run {index + 1}", justify="right", no_wrap=True)
    for name in names:
        medians = [
            summary.median(cell) if (cell := cells.get(name)) is not None and cell.status == "ok" else None
            for cells in by_id
        ]
        row = [Text(printable(name)), Text(plot(medians))]
        table.add_row(*row, *(Text(NONE if medians[i] is None else number(medians[i])) for i in shown))
    lines = [
        Text(
            printable(f"run {index}: {run.created}, {run.folder}, {run.environment.cpu.model} ({run.environment.host})")
        )
        for index, run in enumerate(ordered, start=1)
    ]
    return Group(*lines, Text(), table)


def plot(values: Sequence[float | None]) -> str:
    """Values as bars from 0 to the largest; a blank where there is none."""
    largest = max((value for value in values if value is not None), default=0.0)
    return "".join(
        " " if value is None else _BARS[min(len(_BARS) - 1, int(value / largest * len(_BARS)))] for value in values
    )
