"""Compare backends from a YAML file: parity, latency, provenance."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from isorun_matrix.spec.spec import Spec

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

_OUT = "isorun-results"
_CHECK_FAILED, _BACKEND_TROUBLE, _INTERRUPTED = 1, 3, 130


class Format(StrEnum):
    """The forms of a report."""

    terminal = "terminal"
    md = "md"
    html = "html"
    json = "json"


class Plain(StrEnum):
    """The forms of a comparison."""

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
        typer.Option(metavar="DIR", help="Where results go; a new folder under isorun-results unless given."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in --out: keep what is measured there.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which environments would be made and which cells run, and stop.")
    ] = False,
) -> None:
    """Run every cell of a spec, and print a table. Exits with 1 where outputs were wrong or a cell failed.

    Isolated environments that the spec declares and that are missing are made first.
    """
    import shlex

    from isorun_matrix.execution import progress
    from isorun_matrix.execution import runner as runs
    from isorun_matrix.results.folder import RunFolder
    from isorun_matrix.spec.reader import load

    loaded = load(spec)
    if resume and out is None:
        raise typer.BadParameter("--resume needs the --out of the run to go on with")
    if dry_run:
        _outlook(loaded)
        return
    folder = RunFolder(out or _new_folder(spec))
    watcher = progress.for_terminal()
    watcher.say(f"{_extent(loaded)}; results go to {folder.path}")
    try:
        document = runs.run(loaded, spec.absolute(), folder, watcher, resume=resume)
    except (KeyboardInterrupt, OSError) as stopped:
        again = shlex.join(["isorun", "matrix", "run", str(spec), "--out", str(folder.path), "--resume"])
        watcher.say(f"Stopped. What is measured is kept; go on with:\n  {again}")
        if isinstance(stopped, OSError):  # a full disk
            raise
        raise typer.Exit(_INTERRUPTED) from None
    watcher.say("")
    _print(document)
    watcher.say(f"More: isorun matrix report {shlex.quote(str(folder.path))} --format html --output report.html")
    if code := _exit_code(document):
        raise typer.Exit(code)


@app.command()
def validate(spec: SpecFile) -> None:
    """Check a spec without running or making anything; say how many cells it has."""
    from isorun_matrix.spec.reader import load

    typer.echo(f"{spec} is sound: {_extent(load(spec))}")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.", show_default=False)],
    form: Annotated[
        Format, typer.Option("--format", metavar="terminal|md|html|json", help="How to show it.")
    ] = Format.terminal,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="A file instead of standard output.")] = None,
) -> None:
    """Show the results of a run."""
    import json

    from isorun_matrix.results.folder import RunFolder

    found = RunFolder(folder)
    document = found.document()
    if form is Format.terminal and output is None:
        _print(document)
        return
    if form is Format.json:
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    elif form is Format.md:
        from isorun_matrix.report import markdown

        text = markdown.render(document)
    elif form is Format.html:
        from isorun_matrix.report import html

        text = html.render(document, found.run())
    else:
        raise typer.BadParameter("--output takes md, html or json; the terminal's form is for the terminal")
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        typer.echo(f"Wrote {output}", err=True)


@app.command()
def compare(
    first: Annotated[
        Path, typer.Argument(metavar="DIR", help="The run that others are held against.", show_default=False)
    ],
    others: Annotated[list[Path], typer.Argument(metavar="OTHER", help="Other runs.", show_default=False)],
    form: Annotated[Plain, typer.Option("--format", metavar="terminal|md|json", help="How to show it.")] = (
        Plain.terminal
    ),
    fail_above: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            min=0,
            help="Exit with 1 where a p50 grew by more, intervals apart, or a cell is no longer ok.",
        ),
    ] = None,
) -> None:
    """Hold runs against the first: what is faster or slower, and what differs in machine, software and spec."""
    import json

    from isorun.cli import console
    from isorun_matrix.report import compare as comparing
    from isorun_matrix.report import comparison_tables as compared
    from isorun_matrix.results.folder import RunFolder

    found = comparing.compare([comparing.Run.read(RunFolder(folder)) for folder in (first, *others)])
    if form is Plain.json:
        typer.echo(json.dumps(found, indent=1, allow_nan=False))
    elif form is Plain.md:
        typer.echo(compared.as_markdown(found), nl=False)
    else:
        out = console.stdout()
        out.print(compared.render(found, out.width))
    worse = [] if fail_above is None else comparing.worse(found, fail_above)
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


def _new_folder(spec: Path) -> Path:
    from datetime import datetime

    return Path(_OUT) / f"{spec.stem}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _outlook(spec: Spec) -> None:
    from isorun_matrix.execution import environments as isolated
    from isorun_matrix.execution.plan import plan

    typer.echo(_extent(spec))
    for line in isolated.outlook(spec):
        typer.echo(line)
    for cell in plan(spec).cells:
        typer.echo(f"cell {cell.id}")


def _extent(spec: Spec) -> str:
    from isorun_matrix.execution.plan import plan

    planned = plan(spec)
    counts = {
        "model": len(planned.preparations),
        "workload": len(planned.workloads),
        "cell": len(planned.cells),
    }
    return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items())


def _print(document: dict[str, Any]) -> None:
    from isorun.cli import console
    from isorun_matrix.report import terminal

    out = console.stdout()
    out.print(terminal.render(document, out.width))


def _exit_code(document: dict[str, Any]) -> int:
    """1 where outputs were wrong, or a cell failed or is unchecked; 3 where every cell lacked its backend; else 0."""
    from isorun_matrix.results.folder import LACKING

    statuses = [cell["status"] for cell in document["cells"]]
    if all(status in LACKING for status in statuses):
        return _BACKEND_TROUBLE
    if any(cell["kept"] is not None for cell in document["cells"]):
        return _CHECK_FAILED
    return 0 if all(status in ("ok", *LACKING) for status in statuses) else _CHECK_FAILED
