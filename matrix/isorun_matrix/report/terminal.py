"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from isorun_matrix.report import details, remarks, summary, tradeoff, under_load
from isorun_matrix.report.columns import Column, columns
from isorun_matrix.report.formatting import shortened
from isorun_matrix.results.records import CellResult, Run
from isorun_matrix.text import printable

_LABEL = 8  # minimum width of the first column
_STYLES = {"ok": "green", "bad": "bold red", "lack": "yellow"}


def render(run: Run, width: int) -> RenderableType:
    """A table ``width`` characters wide with a block for each model and shape; below it, why cells failed."""
    shown = columns("terminal", run.cells)
    groups = summary.groups(run.cells)
    blocks = {group.title: [_row(cell, group, shown) for cell in group.cells] for group in groups}
    numeric = [column.numeric for column in shown]
    return Stack(
        *_conclusions(groups),
        *tables([column.header for column in shown], numeric, blocks, width),
        Text(),
        *_loads(groups, width),
        *_explanations(run, groups),
        Text(remarks.tally(run.cells), style="bold"),
    )


def tables(
    headers: Sequence[str], numeric: Sequence[bool], blocks: dict[str, list[list[Text]]], width: int
) -> list[RenderableType]:
    """Rows under one header, a titled block after another, with columns of the same width."""
    header = [Text(text, style="bold") for text in headers]
    widths = _widths([header, *(row for rows in blocks.values() for row in rows)], width)
    drawn: list[RenderableType] = [_table([header], widths, numeric)]
    for title, rows in blocks.items():
        drawn += [Text(), Text(printable(title), style="bold"), _table(rows, widths, numeric)]
    return drawn


def _widths(rows: Sequence[Sequence[Text]], width: int) -> list[int]:
    """The widths of the columns.

    Where ``width`` is too small, the first column is narrower, down to :data:`_LABEL`: it can be folded, whereas a
    number on two lines would be misread.
    """
    first, *others = (max(cell.cell_len for cell in column) for column in zip(*rows, strict=True))
    left = width - sum(others) - len(others) - 1  # a blank after each column
    return [min(first, max(left, _LABEL)), *others]


def _table(rows: Sequence[Sequence[Text]], widths: Sequence[int], numeric: Sequence[bool]) -> Table:
    drawn = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for index, (width, right) in enumerate(zip(widths, numeric, strict=True)):
        drawn.add_column(
            width=width,
            justify="right" if right else "left",
            no_wrap=index > 0,
            overflow="ellipsis" if index else "fold",
        )
    for row in rows:
        drawn.add_row(*row)
    return drawn


def _row(cell: CellResult, group: summary.Group, shown: Sequence[Column]) -> list[Text]:
    style = "bold green" if group.leads(cell) else ""
    styles = {"backend": style, "precision": style, "p50 ms": style}
    row = [Text(printable(column.text(cell, group)), styles.get(column.header, "")) for column in shown]
    row[-1] = Text(group.status(cell), style=style or _STYLES[remarks.kind(cell)])
    return row


def _conclusions(groups: Sequence[summary.Group]) -> Iterator[Text]:
    for group in groups:
        for line in (group.conclusion, *tradeoff.conclusions(group), *under_load.best(group)):
            yield Text.assemble((printable(group.title), "bold"), ": ", printable(line))
    yield Text()


def _loads(groups: Sequence[summary.Group], width: int) -> Iterator[RenderableType]:
    for group in groups:
        scenarios, rows = under_load.rates(group)
        if rows:
            blocks = {group.title: [[Text(printable(text)) for text in row] for row in rows]}
            yield from tables(["requests/s", *scenarios], [False, *(True for _ in scenarios)], blocks, width)
            yield Text()


def _explanations(run: Run, groups: Sequence[summary.Group]) -> Iterator[Text]:
    explained = remarks.explanations(cell for cell in run.cells if not cell.control)
    below = [(shortened([cell.id for cell in cells]), why) for why, cells in explained.items()]
    below += [(f"{group.model}/{group.shape}", note) for group in groups for note in remarks.notes(group)]
    below += details.isolated(run)
    for name, text in below:
        yield Text.assemble((printable(name), "bold"), ": ", printable(text))
    if below:
        yield Text()
