"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from isorun_matrix.report import view

_STYLES = {"ok": "green", "pending": "dim", "unavailable": "yellow", "unsupported": "yellow", "skipped": "yellow"}


def render(document: Mapping[str, Any]) -> RenderableType:
    """The cells as a table, one block for each model and shape; below it, why cells failed."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("backend", overflow="fold")
    table.add_column("precision")
    for heading in ("p50 ms", "p90", "p99", "tokens/s", "max rel", "peak MiB"):
        table.add_column(heading, justify="right")
    table.add_column("status", overflow="fold")
    for group in view.groups(document):
        table.add_row(Text(group.title, style="bold"))
        for cell in group.cells:
            table.add_row(*_row(cell, group))
        table.add_section()
    return Stack(table, Text(), *_explanations(document), Text(view.tally(document), style="bold"))


def _row(cell: view.Cell, group: view.Group) -> Iterator[Text]:
    fastest = cell["id"] == group.fastest
    style = "bold green" if fastest else ""
    yield Text(f"  {cell['label']}", style=style)
    yield Text(cell["precision"], style=style)
    yield Text(view.number(view.p(cell, 50)), style=style)
    yield Text(view.number(view.p(cell, 90)))
    yield Text(view.number(view.p(cell, 99)))
    yield Text(view.number(view.measure(cell, "throughput", "tokens_per_s")))
    yield Text(view.error(view.measure(cell, "parity", "max_rel")))
    yield Text(view.number(view.measure(cell, "memory_mib", "peak")))
    yield Text(view.status(cell, group), style=style or _STYLES.get(cell["status"], "bold red"))


def _explanations(document: Mapping[str, Any]) -> Iterator[Text]:
    found = [(cell["id"], text) for cell in document["cells"] if (text := view.explanation(cell))]
    for name, text in found:
        yield Text.assemble((name, "bold"), ": ", text)
    said = [(f"{group.model}/{group.shape}", note) for group in view.groups(document) for note in view.notes(group)]
    for name, text in said:
        yield Text.assemble((name, "bold"), ": ", text)
    if found or said:
        yield Text()
