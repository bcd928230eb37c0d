"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from isorun_matrix.report import details, remarks, summary, under_load
from isorun_matrix.report.columns import Column, columns
from isorun_matrix.report.document import Table, stacked
from isorun_matrix.report.formatting import shortened
from isorun_matrix.results.records import CellResult, Run
from isorun_matrix.text import printable

_STYLES = {"ok": "green", "bad": "red", "lack": "yellow"}


def render(run: Run) -> RenderableType:
    """A table with a block for each model and shape; below it, why cells failed."""
    shown = columns("terminal", run.cells)
    groups = summary.groups(run.cells)
    tables = [cells_of(shown, groups), *(table for group in groups if (table := under_load.table(group)))]
    return stacked(
        _conclusions(groups),
        *([table] for table in tables),
        _explanations(run, groups),
        [Text(remarks.tally(run.cells), style="bold")],
    )


def cells_of(shown: Sequence[Column], groups: Sequence[summary.Group]) -> Table:
    """The cells of groups in these columns, of which the last is the status."""
    blocks = {group.title: [_row(cell, group, shown) for cell in group.cells] for group in groups}
    return Table([column.header for column in shown], [column.numeric for column in shown], blocks)


def _row(cell: CellResult, group: summary.Group, shown: Sequence[Column]) -> list[Text]:
    leads = group.leads(cell)
    styles = {"backend": "bold green", "precision": "green", "p50 ms": "green"} if leads else {}
    row = [Text(printable(column.text(cell, group)), styles.get(column.header, "")) for column in shown]
    row[-1] = Text(group.status(cell), "bold green" if leads else _STYLES[remarks.kind(cell)])
    return row


def _conclusions(groups: Sequence[summary.Group]) -> Iterator[Text]:
    for group in groups:
        for line in remarks.conclusions(group):
            yield Text.assemble((printable(group.title), "bold"), ": ", printable(line))


def _explanations(run: Run, groups: Sequence[summary.Group]) -> Iterator[Text]:
    explained = remarks.explanations(cell for cell in run.cells if not cell.control)
    below = [(shortened([cell.id for cell in cells]), why) for why, cells in explained.items()]
    below += [(f"{group.model}/{group.shape}", note) for group in groups for note in remarks.notes(group)]
    below += details.isolated(run)
    for name, text in below:
        yield Text.assemble((printable(name), "bold"), ": ", printable(text))
