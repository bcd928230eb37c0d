"""The commands of ``isorun matrix``. Heavy modules are imported where a command needs them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from isorun_matrix.results.records import Run

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

_OUT = "isorun-results"
_CHECK_FAILED, _BACKEND_TROUBLE, _INTERRUPTED = 1, 3, 130


class Format(StrEnum):
    """Formats of a report."""

    terminal = "terminal"
    md = "md"
    html = "html"
    json = "json"


class Plain(StrEnum):
    """Formats of a comparison."""

    terminal = "terminal"
    md = "md"
    json = "json"


SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A YAML file: see docs/matrix.md.", show_default=False)]


@app.callback()
def _matrix() -> None:
    """Compare backends from a YAML file: parity, latency, provenance."""


@app.command()
def run(
    spec: SpecFile,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder for results. Default: a new folder in isorun-results."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out and keep what is already measured.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the environments to create and the cells to run, and stop.")
    ] = False,
) -> None:
    """Run every cell of a spec, and print a table. Exits with 1 if outputs are wrong or a cell failed.

    Isolated environments that the spec declares are created first where they are missing.
    """
    import shlex
    from datetime import datetime

    from isorun_matrix.execution import environments, progress, runner
    from isorun_matrix.execution.plan import plan
    from isorun_matrix.results.folder import RunFolder
    from isorun_matrix.spec.reader import load

    loaded = load(spec)
    if resume and out is None:
        raise typer.BadParameter("--resume needs --out, the folder of the run to continue")
    planned = plan(loaded)
    if dry_run:
        lines = [str(planned), *environments.preview(loaded), *(f"cell {cell.id}" for cell in planned.cells)]
        typer.echo("\n".join(lines))
        return
    folder = RunFolder(out or Path(_OUT) / f"{spec.stem}-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    shown = progress.for_stderr()
    shown.note(f"{planned}; results go to {folder.path}")
    try:
        done = runner.run(loaded, spec.absolute(), folder, shown, resume=resume)
    except (KeyboardInterrupt, OSError) as stopped:
        again = shlex.join(["isorun", "matrix", "run", str(spec), "--out", str(folder.path), "--resume"])
        shown.note(f"Stopped. Finished measurements are kept. Continue with:\n  {again}")
        if isinstance(stopped, OSError):  # a full disk
            raise
        raise typer.Exit(_INTERRUPTED) from None
    shown.note("")
    _print(done)
    shown.note(f"More: isorun matrix report {shlex.quote(str(folder.path))} --format html --output report.html")
    if code := _exit_code(done):
        raise typer.Exit(code)


@app.command()
def validate(spec: SpecFile) -> None:
    """Check a spec without running anything, and print the number of its cells."""
    from isorun_matrix.execution.plan import plan
    from isorun_matrix.spec.reader import load

    typer.echo(f"{spec} is valid: {plan(load(spec))}")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.", show_default=False)],
    form: Annotated[
        Format, typer.Option("--format", metavar="terminal|md|html|json", help="The output format.")
    ] = Format.terminal,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to a file instead of standard output.")
    ] = None,
) -> None:
    """Show the results of a run."""
    import json

    from isorun_matrix.results.folder import RunFolder

    found = RunFolder(folder).run()
    if form is Format.terminal and output is None:
        _print(found)
        return
    if form is Format.json:
        text = json.dumps(found.as_document(), indent=1, allow_nan=False) + "\n"
    elif form is Format.md:
        from isorun_matrix.report import markdown

        text = markdown.render(found)
    elif form is Format.html:
        from isorun_matrix.report import html

        text = html.render(found)
    else:
        raise typer.BadParameter("--output needs --format md, html or json")
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        typer.echo(f"Wrote {output}", err=True)


@app.command()
def compare(
    first: Annotated[
        Path, typer.Argument(metavar="DIR", help="The run that the others are compared with.", show_default=False)
    ],
    others: Annotated[list[Path], typer.Argument(metavar="OTHER", help="Other runs.", show_default=False)],
    form: Annotated[Plain, typer.Option("--format", metavar="terminal|md|json", help="The output format.")] = (
        Plain.terminal
    ),
    fail_above: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            min=0,
            help="Exit with 1 if a p50 grew by more than PERCENT, with intervals apart, or a cell is no longer ok.",
        ),
    ] = None,
) -> None:
    """Compare runs with the first: what is faster or slower, and what differs in machine, software and spec."""
    import json

    from isorun.cli import console
    from isorun_matrix.report import comparison_tables
    from isorun_matrix.report.compare import compare as compare_runs
    from isorun_matrix.report.compare import regressions
    from isorun_matrix.results.folder import RunFolder

    comparison = compare_runs([RunFolder(folder).run() for folder in (first, *others)])
    if form is Plain.json:
        typer.echo(json.dumps(comparison.as_document(), indent=1, allow_nan=False))
    elif form is Plain.md:
        typer.echo(comparison_tables.as_markdown(comparison), nl=False)
    else:
        out = console.stdout()
        out.print(comparison_tables.render(comparison, out.width))
    worse = [] if fail_above is None else regressions(comparison, fail_above)
    for name, number, how in worse:
        console.note(f"{name}, run {number + 1}: {how}")
    if worse:
        raise typer.Exit(_CHECK_FAILED)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    import json

    from isorun_matrix.spec.spec import Spec

    typer.echo(json.dumps(Spec.model_json_schema(), indent=2))


def _print(run: Run) -> None:
    from isorun.cli import console
    from isorun_matrix.report import terminal

    out = console.stdout()
    out.print(terminal.render(run, out.width))


def _exit_code(run: Run) -> int:
    """1 if outputs were wrong, or a cell failed or is unchecked; 3 if no cell has an available backend; else 0."""
    from isorun_matrix.results.records import LACKING

    statuses = [cell.status for cell in run.cells]
    if all(status in LACKING for status in statuses):
        return _BACKEND_TROUBLE
    if any(cell.kept is not None for cell in run.cells):
        return _CHECK_FAILED
    return 0 if all(status in ("ok", *LACKING) for status in statuses) else _CHECK_FAILED
