"""A report for an issue, a pull request or a page of documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isorun_matrix.report import details, remarks, summary, tradeoff, under_load
from isorun_matrix.report.columns import Column, columns
from isorun_matrix.results.records import CellResult, Run
from isorun_matrix.text import printable


def render(run: Run) -> str:
    """The run as GitHub's Markdown."""
    lines = ["# Backends compared", "", f"{remarks.tally(run.cells)}.", ""]
    shown = columns("markdown", run.cells)
    for group in summary.groups(run.cells):
        rows = [_row(cell, group, shown) for cell in group.cells]
        lines += [f"## {escaped(group.title)}", ""]
        lines += [
            f"{escaped(line)}\n" for line in (group.conclusion, *tradeoff.conclusions(group), *under_load.best(group))
        ]
        lines += [*table([column.header for column in shown], [column.numeric for column in shown], rows), ""]
        scenarios, loads = under_load.rates(group)
        if loads:
            headers = ["requests/s", *map(escaped, scenarios)]
            numeric = [False, *(True for _ in scenarios)]
            lines += [*table(headers, numeric, [[*map(escaped, row)] for row in loads]), ""]
        below = [f"{summary.names(cells)}: {why}" for why, cells in remarks.explanations(group.cells).items()]
        below += remarks.notes(group)
        lines += [*(f"- {escaped(remark)}" for remark in below), *([""] if below else [])]
    lines += ["## Environment", "", *(f"- {escaped(name)}: {escaped(value)}" for name, value in details.of_run(run))]
    return "\n".join(lines) + "\n"


def _row(cell: CellResult, group: summary.Group, shown: Sequence[Column]) -> list[str]:
    row = [escaped(column.text(cell, group)) for column in shown]
    row[-1] = escaped(group.status(cell))
    if group.leads(cell):
        row[0], row[-1] = f"**{row[0]}**", f"**{row[-1]}**"
    return row


def table(headers: Sequence[str], numeric: Sequence[bool], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, whose cells are escaped already."""
    for row in (headers, ["---:" if right else "---" for right in numeric], *rows):
        yield f"| {' | '.join(row)} |"


def escaped(text: str) -> str:
    """Text on one line without markup."""
    text = printable(" ".join(text.splitlines()))
    for special in "\\`*_|<>[]&~$#":
        text = text.replace(special, f"\\{special}")
    return text
