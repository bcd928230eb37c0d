"""A report for an issue, a pull request or a page of documentation."""

from __future__ import annotations

from isorun_matrix.report import details, remarks, summary, under_load
from isorun_matrix.report.columns import columns
from isorun_matrix.report.document import escaped, items
from isorun_matrix.report.terminal import cells_of
from isorun_matrix.results.records import Run


def render(run: Run) -> str:
    """The run as GitHub's Markdown."""
    lines = ["# Backends compared", "", f"{remarks.tally(run.cells)}.", ""]
    shown = columns("markdown", run.cells)
    for group in summary.groups(run.cells):
        heading, blank, *table = cells_of(shown, [group]).as_markdown()
        lines += [heading, blank, *(f"{escaped(line)}\n" for line in remarks.conclusions(group)), *table]
        lines += loads.as_markdown() if (loads := under_load.table(group)) else []
        below = [f"{summary.names(cells)}: {why}" for why, cells in remarks.explanations(group.cells).items()]
        below += remarks.notes(group)
        lines += [*items(below), *([""] if below else [])]
    lines += ["## Environment", "", *items(f"{name}: {value}" for name, value in details.of_run(run))]
    return "\n".join(lines) + "\n"
