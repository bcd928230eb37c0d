"""Several machines side by side as a document and as CSV.

The figures are those of :mod:`isorun_matrix.report.machines.overview`.
"""

from __future__ import annotations

import csv
import io

from rich.text import Text

from isorun_matrix.report.document import Document, Table
from isorun_matrix.report.machines.overview import Overview
from isorun_matrix.text import printable


def document(overview: Overview) -> Document:
    """The overview in the terminal and in Markdown; the cells that lead on a machine are emphasized."""
    numeric = [False, *(True for _ in overview.machines)]
    tables = []
    for blocks in (overview.figures, overview.means):
        rows = {
            f"{block.title}: {block.figure}": [
                [Text(printable(name)), *(Text(value.text, "bold green" if value.leads else "") for value in values)]
                for name, values in block.rows.items()
            ]
            for block in blocks
        }
        tables += [Table(["", *overview.machines], numeric, rows)] if rows else []
    return Document("Machines compared", overview.conclusions, tables, overview.notes)


def as_csv(overview: Overview) -> str:
    """The same as comma-separated values, with a column for each machine."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["cells", "figure", "cell", *overview.machines])
    for block in overview.blocks:
        for name, values in block.rows.items():
            writer.writerow([block.title, block.figure, name, *(value.number for value in values)])
    return out.getvalue()
