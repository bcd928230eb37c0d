"""A report for an issue, a pull request or a page of documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isorun_matrix.report import summary as view
from isorun_matrix.text import printable

_HEADINGS = ("backend", "precision", "p50 ms", "p90", "p99", "tokens/s", "load ms", "peak MiB", "max rel", "cosine")


def render(document: Mapping[str, Any]) -> str:
    """The run as Markdown, tables as GitHub reads them."""
    lines = ["# Backends compared", "", f"{view.tally(document)}.", ""]
    for group in view.groups(document):
        lines += [f"## {escaped(group.title)}", "", *_table(group), ""]
        whys = view.explanations(group.cells)
        lines += [f"- {escaped(view.named(cells, view.short))}: {escaped(why)}" for why, cells in whys.items()]
        lines += [f"- {escaped(note)}" for note in view.notes(group)]
        lines += [""] if lines[-1] else []
    lines += [
        "## Environment",
        "",
        *(f"- {escaped(name)}: {escaped(value)}" for name, value in view.environment(document)),
    ]
    return "\n".join(lines) + "\n"


def _table(group: view.Group) -> Iterator[str]:
    yield line((*_HEADINGS, "status"))
    yield line(("---", "---", *("---:" for _ in _HEADINGS[2:]), "---"))
    for cell in group.cells:
        name, status = escaped(cell["label"]), escaped(view.status(cell, group))
        leads = view.leads(cell, group)
        yield line(
            (
                f"**{name}**" if leads else name,
                escaped(cell["precision"]),
                *(view.number(view.p(cell, percentile)) for percentile in (50, 90, 99)),
                view.number(view.measure(cell, "throughput", "tokens_per_s")),
                view.number(cell["load_ms"]),
                view.number(view.measure(cell, "memory_mib", "peak")),
                view.error(view.measure(cell, "parity", "max_rel")),
                view.cosine(view.measure(cell, "parity", "cosine")),
                f"**{status}**" if leads else status,
            )
        )


def line(cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text on one line that Markdown takes for nothing else."""
    text = printable(" ".join(text.splitlines()))
    for special in "\\`*_|<>[]&~$#":
        text = text.replace(special, f"\\{special}")
    return text
