"""``isorun matrix report`` and ``merge``: the results of one machine, or of several."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isorun.errors import SpecError

if TYPE_CHECKING:
    from isorun_matrix.results.machines import MachineRuns
    from isorun_matrix.results.records import Run

_NEEDS_FORMAT = "--output needs --format md, html, json or csv"


class Format(StrEnum):
    """Formats of a report."""

    terminal = "terminal"
    md = "md"
    html = "html"
    json = "json"
    csv = "csv"


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of runs; several only with html or csv.", show_default=False),
    ],
    form: Annotated[
        Format, typer.Option("--format", metavar="terminal|md|html|json|csv", help="The output format.")
    ] = Format.terminal,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to a file instead of standard output.")
    ] = None,
) -> None:
    """Show the results of a run, or of several."""
    import json

    from isorun_matrix.results import machines
    from isorun_matrix.results.folder import RunFolder

    if output is not None:
        _check_output(output, folders)
    if len(folders) == 1 and machines.is_of_several(folders[0]):
        show_machines(machines.read(folders[0]), form, output)
        return
    if len(folders) > 1 and form not in (Format.html, Format.csv):
        raise typer.BadParameter("several runs need --format html or csv. To compare them, use isorun matrix compare")
    document, *others = (RunFolder(folder).run() for folder in folders)
    if form is Format.terminal and output is None:
        show(document)
        return
    if form is Format.json:
        text = json.dumps(document.as_document(), indent=1, allow_nan=False) + "\n"
    elif form is Format.md:
        from isorun_matrix.report import markdown

        text = markdown.render(document)
    elif form is Format.html:
        from isorun_matrix.report import html

        text = html.render(document, *others)
    elif form is Format.csv:
        from isorun_matrix.report import csv

        text = csv.render([document, *others])
    else:
        raise typer.BadParameter(_NEEDS_FORMAT)
    _write(text, output)


def merge(
    folders: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]DIR", help="Folders of runs, one for each machine.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(metavar="RUN", help="The folder to create.", show_default=False)],
) -> None:
    """Put the runs of several machines into one folder, and compare the machines."""
    from isorun_matrix.results import machines

    if len(folders) < 2:
        raise typer.BadParameter("expected the runs of at least two machines")
    show_machines(machines.merge(folders, out))


def show(run: Run) -> None:
    """Print a run as a table."""
    from isorun.cli import console
    from isorun_matrix.report import terminal

    out = console.stdout()
    out.print(terminal.render(run, out.width))


def show_machines(runs: MachineRuns, form: Format = Format.terminal, output: Path | None = None) -> None:
    """Print the runs of several machines, side by side, or write them to a file."""
    import json

    from isorun.cli import console
    from isorun_matrix.report import html
    from isorun_matrix.report.machines import tables
    from isorun_matrix.report.machines.overview import overview
    from isorun_matrix.results.records import SCHEMA

    compared = overview(runs)
    if form is Format.terminal:
        if output is not None:
            raise typer.BadParameter(_NEEDS_FORMAT)
        out = console.stdout()
        out.print(tables.document(compared).drawn(out.width))
        return
    if form is Format.json:
        documents = {name: run.as_document() for name, run in runs.runs.items()}
        text = json.dumps({"schema": SCHEMA, "machines": documents}, indent=1, allow_nan=False) + "\n"
    elif form is Format.html:
        text = html.render(*runs.runs.values(), overview=compared)
    else:
        text = tables.document(compared).as_markdown() if form is Format.md else tables.as_csv(compared)
    _write(text, output)


def _check_output(output: Path, folders: Sequence[Path]) -> None:
    """Refuse a file that cannot be written, or that has results: reports may be beside them.

    Raises:
        IsorunError: it is one.
    """
    from isorun.cli import models
    from isorun_matrix.results.layout import RUN

    path = models.check_output(output).resolve()
    for folder in folders:
        inside = path.relative_to(folder.resolve()).parts if path.is_relative_to(folder.resolve()) else ()
        if inside == (RUN,) or (len(inside) > 1 and path.exists()):
            raise SpecError(f"{output} belongs to the results in {folder}. Choose another --output")


def _write(text: str, output: Path | None) -> None:
    from isorun.system.cache import write_atomically

    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(output, text.encode())
        typer.echo(f"Wrote {output}", err=True)
