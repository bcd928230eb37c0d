"""Several machines side by side in the terminal, in Markdown and as CSV.

The figures are those of :mod:`isorun_matrix.report.machines.overview`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from isorun_matrix.report import markdown, terminal
from isorun_matrix.report.machines.overview import Overview
from isorun_matrix.report.machines.side_by_side import Block
from isorun_matrix.text import printable


def render(overview: Overview, width: int) -> RenderableType:
    """The overview in a terminal, ``width`` characters wide."""
    return Stack(
        *(Text(printable(line)) for line in overview.conclusions),
        Text(),
        *_tables(overview.machines, overview.figures, width),
        *_tables(overview.machines, overview.means, width),
        *(Text(printable(note)) for note in overview.notes),
    )


def _tables(machines: Sequence[str], blocks: Sequence[Block], width: int) -> list[RenderableType]:
    drawn = {
        f"{block.title}: {block.figure}": [
            [Text(printable(name)), *(Text(value.text, "bold green" if value.leads else "") for value in values)]
            for name, values in block.rows.items()
        ]
        for block in blocks
    }
    numeric = [False, *(True for _ in machines)]
    return [*terminal.tables(["", *machines], numeric, drawn, width), Text()] if drawn else []


def as_markdown(overview: Overview) -> str:
    """The same as GitHub's Markdown."""
    numeric = [False, *(True for _ in overview.machines)]
    lines = ["# Machines compared", "", *(f"- {markdown.escaped(line)}" for line in overview.conclusions), ""]
    for block in overview.blocks:
        rows = [
            [markdown.escaped(name), *(f"**{value.text}**" if value.leads else value.text for value in values)]
            for name, values in block.rows.items()
        ]
        headers = [markdown.escaped(block.figure), *map(markdown.escaped, overview.machines)]
        lines += [f"## {markdown.escaped(block.title)}", "", *markdown.table(headers, numeric, rows), ""]
    return "\n".join([*lines, *(f"- {markdown.escaped(note)}" for note in overview.notes)]) + "\n"


def as_csv(overview: Overview) -> str:
    """The same as comma-separated values, with a column for each machine."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["cells", "figure", "cell", *overview.machines])
    for block in overview.blocks:
        for name, values in block.rows.items():
            writer.writerow([block.title, block.figure, name, *(value.number for value in values)])
    return out.getvalue()
