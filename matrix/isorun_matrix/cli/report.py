"""``isorun matrix report``, ``merge`` and ``check``: the results of one machine, or of several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from isorun.cli import CHECK_FAILED
from isorun.errors import SpecError

if TYPE_CHECKING:
    from isorun_matrix.results.machines import MachineRuns
    from isorun_matrix.results.records import Run

Format = Literal["terminal", "md", "html", "json", "csv"]


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of runs; several only with html or csv.", show_default=False),
    ],
    form: Annotated[Format, typer.Option("--format", help="The output format.")] = "terminal",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to a file instead of standard output.")
    ] = None,
) -> None:
    """Show the results of a run, or of several."""
    from isorun_matrix.report import csv, html, markdown
    from isorun_matrix.results import machines
    from isorun_matrix.results.folder import RunFolder

    if output is not None:
        if form == "terminal":
            raise typer.BadParameter("--output needs --format md, html, json or csv")
        _check_output(output, folders)
    if len(folders) == 1 and machines.is_of_several(folders[0]):
        show_machines(machines.read(folders[0]), form, output)
        return
    if len(folders) > 1 and form not in ("html", "csv"):
        raise typer.BadParameter("several runs need --format html or csv. To compare them, use isorun matrix compare")
    runs = [RunFolder(folder).run() for folder in folders]
    match form:
        case "terminal":
            show(runs[0])
        case "json":
            _write_json(runs[0].as_document(), output)
        case "md":
            _write(markdown.render(runs[0]), output)
        case "html":
            _write(html.render(*runs), output)
        case "csv":
            _write(csv.render(runs), output)


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

    console.stdout().print(terminal.render(run))


def show_machines(runs: MachineRuns, form: Format = "terminal", output: Path | None = None) -> None:
    """Print the runs of several machines, side by side, or write them to a file."""
    from isorun.cli import console
    from isorun_matrix.report import html
    from isorun_matrix.report.machines.overview import overview
    from isorun_matrix.results.records import SCHEMA

    compared = overview(runs)
    match form:
        case "terminal":
            console.stdout().print(compared.as_tables())
        case "json":
            documents = {name: run.as_document() for name, run in runs.runs.items()}
            _write_json({"schema": SCHEMA, "machines": documents}, output)
        case "md":
            _write(compared.as_tables().as_markdown(), output)
        case "html":
            _write(html.render(*runs.runs.values(), overview=compared), output)
        case "csv":
            _write(compared.as_csv(), output)


def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.", show_default=False)],
) -> None:
    """Check a run: files, spec, samples, seeds, caching, disturbed cells. Exits with 1 if anything is wrong."""
    from isorun.cli import console
    from isorun_matrix.results import audit, machines

    problems = [
        (f"{name}: {place}" if machines.is_of_several(folder) else place, problem)
        for name, run in machines.folders(folder).items()
        for place, problem in audit.problems(run)
    ]
    for place, problem in problems:
        console.note(f"{place}: {problem}")
    if problems:
        raise typer.Exit(CHECK_FAILED)
    typer.echo(f"{folder}: no problems found")


def _check_output(output: Path, folders: Sequence[Path]) -> None:
    """Raise ``IsorunError`` for a file that cannot be written, or that has results: reports may be beside them."""
    from isorun.cli import models
    from isorun_matrix.results.layout import RUN

    path = models.check_output(output).resolve()
    for folder in folders:
        inside = path.relative_to(folder.resolve()).parts if path.is_relative_to(folder.resolve()) else ()
        if inside == (RUN,) or (len(inside) > 1 and path.exists()):
            raise SpecError(f"{output} belongs to the results in {folder}. Choose another --output")


def _write_json(document: Any, output: Path | None) -> None:
    import json

    _write(json.dumps(document, indent=1, allow_nan=False) + "\n", output)


def _write(text: str, output: Path | None) -> None:
    from isorun.system.cache import write_atomically

    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(output, text.encode())
        typer.echo(f"Wrote {output}", err=True)
