"""Every figure of one or several runs as comma-separated values: a line for each cell."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isorun_matrix.report import summary
from isorun_matrix.results.records import Run


def render(runs: Sequence[Run]) -> str:
    """The runs; the names of columns are those of ``report --format json``, with dots."""
    rows = []
    for run in runs:
        cpu = run.environment.cpu
        about = {"run": run.folder, "created": run.created, "host": run.environment.host, "cpu": cpu.model}
        for group in summary.groups(run.cells):
            for cell in group.cells:
                verdict = {"verdict": group.verdict(cell), "speed_up": group.speed_up(cell)}
                loads = {f"load.{load.name}": load.result and load.result.requests_per_s for load in cell.loads}
                rows.append(about | dict(_flat(cell.as_document())) | verdict | loads)
    known = dict.fromkeys(name for row in rows for name in row)
    lists = {name for row in rows for name, value in row.items() if isinstance(value, list | tuple)}
    # A cell that was not measured has no parity, and others have parity.verdict and so on, or a list of rounds.
    names = [name for name in known if name not in lists and not any(column.startswith(f"{name}.") for column in known)]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _flat(value: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers, texts and lists in nested data."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            if key not in ("cases", "operators", "details", "versions", "environment", "options"):
                yield from _flat(item, f"{place}{key}.")
        else:
            yield f"{place}{key}", item
