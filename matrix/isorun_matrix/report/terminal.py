"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from isorun_matrix.report import summary as view
from isorun_matrix.text import printable

_HEADINGS = ("backend", "precision", "p50 ms", "p90", "p99", "tokens/s", "max rel", "MiB", "status")
_NUMBERS = _HEADINGS[2:8]
_LABEL = 8
_STYLES = {"ok": "green", "bad": "bold red", "lack": "yellow"}


def render(document: Mapping[str, Any], width: int) -> RenderableType:
    """The cells as a table ``width`` characters wide, a block for each model and shape; below it, why cells failed."""
    groups = view.groups(document)
    blocks = [[_row(cell, group) for cell in group.cells] for group in groups]
    rows = [tuple(Text(heading, style="bold") for heading in _HEADINGS), *(row for block in blocks for row in block)]
    columns = widths(rows, width)
    drawn: list[RenderableType] = [table(rows[:1], columns, _HEADINGS, _NUMBERS)]
    for group, block in zip(groups, blocks, strict=True):
        drawn += [Text(), Text(printable(group.title), style="bold"), table(block, columns, _HEADINGS, _NUMBERS)]
    return Stack(*drawn, Text(), *_explanations(document), Text(view.tally(document), style="bold"))


def widths(rows: Sequence[Sequence[Text]], most: int) -> list[int]:
    """How wide each column of several tables is, so that they stand in line.

    Where ``most`` is too little for all, the first is narrower, down to :data:`_LABEL`: it can be folded, and a number
    on two lines would be read as another.
    """
    first, *others = (max(cell.cell_len for cell in column) for column in zip(*rows, strict=True))
    left = most - sum(others) - len(others) - 1  # a blank after each column
    return [min(first, max(left, _LABEL)), *others]


def table(
    rows: Sequence[Sequence[Text]], widths: Sequence[int], headings: Sequence[str], right: Sequence[str]
) -> Table:
    """Rows without a heading of their own; ``right`` names the columns of numbers."""
    drawn = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading, width in zip(headings, widths, strict=True):
        first = heading == headings[0]
        drawn.add_column(
            width=width,
            justify="right" if heading in right else "left",
            no_wrap=not first,
            overflow="fold" if first else "ellipsis",
        )
    for row in rows:
        drawn.add_row(*row)
    return drawn


def _row(cell: view.Cell, group: view.Group) -> tuple[Text, ...]:
    style = "bold green" if view.leads(cell, group) else ""
    return (
        Text(printable(cell["label"]), style=style),
        Text(printable(cell["precision"]), style=style),
        Text(view.number(view.p(cell, 50)), style=style),
        Text(view.number(view.p(cell, 90))),
        Text(view.number(view.p(cell, 99))),
        Text(view.number(view.measure(cell, "throughput", "tokens_per_s"))),
        Text(view.error(view.measure(cell, "parity", "max_rel"))),
        Text(view.number(view.measure(cell, "memory_mib", "peak"))),
        Text(view.status(cell, group), style=style or _STYLES[view.kind(cell)]),
    )


def _explanations(document: Mapping[str, Any]) -> Iterator[Text]:
    said = [
        (view.named(cells, lambda cell: str(cell["id"])), why)
        for why, cells in view.explanations(document["cells"]).items()
    ]
    said += [(f"{group.model}/{group.shape}", note) for group in view.groups(document) for note in view.notes(group)]
    said += view.isolated(document)
    for name, text in said:
        yield Text.assemble((printable(name), "bold"), ": ", printable(text))
    if said:
        yield Text()
