"""The commands of ``isorun matrix``. Heavy modules are imported where a command needs them."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from isorun_matrix.execution.choice import Choice
    from isorun_matrix.execution.progress import Lines
    from isorun_matrix.results.machines import MachineRuns
    from isorun_matrix.results.records import Run
    from isorun_matrix.spec.spec import Spec

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

_OUT = "isorun-results"
_NEEDS_FORMAT = "--output needs --format md, html, json or csv"
_CHECK_FAILED, _BACKEND_TROUBLE, _INTERRUPTED = 1, 3, 130


class Format(StrEnum):
    """Formats of a report."""

    terminal = "terminal"
    md = "md"
    html = "html"
    json = "json"
    csv = "csv"


class Remeasure(StrEnum):
    """What to measure again, although it is complete."""

    disturbed = "disturbed"


class Plain(StrEnum):
    """Formats of a comparison."""

    terminal = "terminal"
    md = "md"
    json = "json"
    junit = "junit"


SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A YAML file: see docs/matrix.md.", show_default=False)]
RunOrSpec = Annotated[
    Path,
    typer.Argument(metavar="SPEC", help="A YAML file, or the run.json of a run to repeat.", show_default=False),
]


@app.callback()
def _matrix() -> None:
    """Compare backends from a YAML file: parity, latency, provenance."""


@app.command()
def run(
    spec: RunOrSpec,
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
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Measure only cells whose id matches, such as 'bert/*/openvino'."),
    ] = None,
    remeasure: Annotated[
        Remeasure | None,
        typer.Option(metavar="disturbed", help="With --resume: repeat disturbed rounds once more."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="With a run.json: where a model's file or folder is on this machine."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Run what the spec has for this one of its machines."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on the spec's machines in this Ray cluster; 'auto' finds it."),
    ] = None,
) -> None:
    """Run every cell of a spec, and print a table. Exits with 1 if outputs are wrong or a cell failed.

    Isolated environments that the spec declares are created first where they are missing.
    """
    import shlex
    from datetime import datetime

    from isorun_matrix.execution import choice, environments, progress, rerun, runner
    from isorun_matrix.execution.plan import plan
    from isorun_matrix.results.folder import RunFolder
    from isorun_matrix.spec.reader import load

    if resume and out is None:
        raise typer.BadParameter("--resume needs --out, the folder of the run to continue")
    if remeasure and not resume:
        raise typer.BadParameter("--remeasure needs --resume and --out, the folder of the run to continue")
    if model and not rerun.is_record(spec):
        raise typer.BadParameter("--model needs the run.json of a run; in a spec, change the path of the model")
    if rerun.is_record(spec):
        loaded, fingerprints = rerun.load(spec, model or [])
    else:
        loaded, fingerprints = load(spec), {}
    if ray is not None and machine is not None:
        raise typer.BadParameter("--machine is for a run without --ray")
    if ray is None and (machine is not None or loaded.is_divided):
        loaded = _on(loaded, machine)
    planned = plan(loaded, 0)
    chosen = None if only is None else choice.select(planned, only)
    if dry_run:
        cells = [cell for cell in planned.cells if not cell.control and (chosen is None or cell.id in chosen)]
        lines = [str(planned), *environments.preview(loaded), *(f"cell {cell.id}" for cell in cells)]
        typer.echo("\n".join(lines))
        return
    folder = RunFolder(out or Path(_OUT) / f"{spec.stem}-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    shown = progress.for_stderr()
    shown.note(f"{planned}; results go to {folder.path}")
    selected = choice.Choice(resume, chosen, remeasure is not None, fingerprints)
    try:
        if ray is not None:
            _run_on_cluster(loaded, spec.absolute(), folder.path, ray, shown, selected)
            return
        done = runner.run(loaded, spec.absolute(), folder, shown, selected)
    except (KeyboardInterrupt, OSError) as stopped:
        more = [part for pattern in only or [] for part in ("--only", pattern)]
        more += [part for item in model or [] for part in ("--model", item)]
        more += [] if machine is None else ["--machine", machine]
        more += [] if ray is None else ["--ray", ray]
        again = shlex.join(["isorun", "matrix", "run", str(spec), "--out", str(folder.path), "--resume", *more])
        shown.note(f"Stopped. Finished measurements are kept. Continue with:\n  {again}")
        if isinstance(stopped, OSError):  # a full disk
            raise
        raise typer.Exit(_INTERRUPTED) from None
    shown.note("")
    _print(done)
    shown.note(f"More: isorun matrix report {shlex.quote(str(folder.path))} --format html --output report.html")
    if code := _exit_code(done, chosen):
        raise typer.Exit(code)


@app.command()
def validate(spec: SpecFile) -> None:
    """Check a spec without running anything, and print the number of its cells."""
    from isorun_matrix.execution.plan import plan
    from isorun_matrix.spec.reader import load

    typer.echo(f"{spec} is valid: {plan(load(spec), 0)}")


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of runs; several with html and csv.", show_default=False),
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

    if len(folders) == 1 and machines.is_of_several(folders[0]):
        _report_machines(machines.read(folders[0]), form, output)
        return
    if len(folders) > 1 and form not in (Format.html, Format.csv):
        raise typer.BadParameter("several runs need --format html or csv. To compare them, use isorun matrix compare")
    found, *others = (RunFolder(folder).run() for folder in folders)
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

        text = html.render(found, *others)
    elif form is Format.csv:
        from isorun_matrix.report import csv

        text = csv.render([found, *others])
    else:
        raise typer.BadParameter(_NEEDS_FORMAT)
    _write(text, output)


@app.command()
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
    _report_machines(machines.merge(folders, out), Format.terminal, None)


@app.command()
def compare(
    first: Annotated[
        Path, typer.Argument(metavar="DIR", help="The run that the others are compared with.", show_default=False)
    ],
    others: Annotated[list[Path], typer.Argument(metavar="OTHER", help="Other runs.", show_default=False)],
    form: Annotated[Plain, typer.Option("--format", metavar="terminal|md|json|junit", help="The output format.")] = (
        Plain.terminal
    ),
    fail_above: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            min=0,
            help="Exit with 1 if a cell is slower by more than PERCENT, and not by chance, or no longer ok.",
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
    worse = regressions(comparison, fail_above or 0)
    if form is Plain.json:
        typer.echo(json.dumps(comparison.as_document(), indent=1, allow_nan=False))
    elif form is Plain.junit:
        from isorun_matrix.report import junit

        typer.echo(junit.render(comparison, worse), nl=False)
    elif form is Plain.md:
        typer.echo(comparison_tables.as_markdown(comparison), nl=False)
    else:
        out = console.stdout()
        out.print(comparison_tables.render(comparison, out.width))
    if fail_above is None:
        return
    for name, number, how in worse:
        console.note(f"{name}, run {number + 1}: {how}")
    if worse:
        raise typer.Exit(_CHECK_FAILED)


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.", show_default=False)],
) -> None:
    """Check a run: files, spec, samples, seeds, caching, disturbed cells. Exits with 1 if anything is wrong."""
    from isorun.cli import console
    from isorun_matrix.results import audit, machines

    found = [
        (f"{name}: {place}" if machines.is_of_several(folder) else place, problem)
        for name, run in machines.folders(folder).items()
        for place, problem in audit.problems(run)
    ]
    for place, problem in found:
        console.note(f"{place}: {problem}")
    if found:
        raise typer.Exit(_CHECK_FAILED)
    typer.echo(f"{folder} is sound")


@app.command()
def history(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of runs.", show_default=False)],
    only: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Show only cells whose id matches.")] = None,
) -> None:
    """Show how each cell changed over runs, in the order of their dates: p50 in ms, and a plot of characters."""
    from isorun.cli import console
    from isorun_matrix.report import history as histories
    from isorun_matrix.results.folder import RunFolder

    out = console.stdout()
    out.print(histories.render([RunFolder(folder).run() for folder in folders], only or ["*"], out.width))


@app.command()
def init(
    output: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.", show_default=True)] = Path(
        "matrix.yaml"
    ),
) -> None:
    """Write a commented spec with the backends that are available on this machine."""
    from isorun.cli import console
    from isorun.errors import SpecError
    from isorun_matrix.spec import starter

    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(starter.text(str(output)))
    except FileExistsError:
        raise SpecError(f"{output} exists. Choose another FILE.") from None
    except OSError as error:
        raise SpecError(f"Cannot write {output}: {error.strerror}") from error
    console.note(f"Wrote {output}. Run it with: isorun matrix run {output}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    import json

    from isorun_matrix.spec.spec import Spec

    typer.echo(json.dumps(Spec.model_json_schema(), indent=2))


def _run_on_cluster(spec: Spec, source: Path, out: Path, address: str, shown: Lines, choice: Choice) -> None:
    import shlex

    from isorun_matrix.execution import cluster

    runs, stopped = cluster.run(spec, source, out, address, shown, choice)
    _report_machines(runs, Format.terminal, None)
    for name, reason in stopped.items():
        shown.note(f"{name} stopped: {reason}. Continue with --resume")
    shown.note(f"More: isorun matrix report {shlex.quote(str(out))} --format html --output report.html")
    codes = {_exit_code(found, choice.only) for found in runs.runs.values()}
    if code := _CHECK_FAILED if stopped or _CHECK_FAILED in codes else min(codes):
        raise typer.Exit(code)


def _on(spec: Spec, machine: str | None) -> Spec:
    from isorun.errors import SpecError, did_you_mean

    if machine is None:
        raise SpecError(
            "Backends or models of this spec name machines. Say which of them this is with --machine NAME: "
            f"{', '.join(spec.machines)}"
        )
    if machine not in spec.machines:
        raise SpecError(f"The spec has no machine {machine!r}{did_you_mean(machine, spec.machines)}")
    return spec.on(machine)


def _report_machines(runs: MachineRuns, form: Format, output: Path | None) -> None:
    import json

    from isorun.cli import console
    from isorun_matrix.report import html, machine_tables
    from isorun_matrix.report.machines import overview
    from isorun_matrix.results.records import SCHEMA

    found = overview(runs)
    if form is Format.terminal:
        if output is not None:
            raise typer.BadParameter(_NEEDS_FORMAT)
        out = console.stdout()
        out.print(machine_tables.render(found, out.width))
        return
    if form is Format.json:
        documents = {name: run.as_document() for name, run in runs.runs.items()}
        text = json.dumps({"schema": SCHEMA, "machines": documents}, indent=1, allow_nan=False) + "\n"
    elif form is Format.html:
        text = html.render(*runs.runs.values(), overview=found)
    else:
        text = machine_tables.as_markdown(found) if form is Format.md else machine_tables.as_csv(found)
    _write(text, output)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        typer.echo(f"Wrote {output}", err=True)


def _print(run: Run) -> None:
    from isorun.cli import console
    from isorun_matrix.report import terminal

    out = console.stdout()
    out.print(terminal.render(run, out.width))


def _exit_code(run: Run, chosen: Collection[str] | None) -> int:
    """1 if outputs were wrong, or a cell failed or is unchecked; 3 if no cell has an available backend; else 0."""
    from isorun_matrix.results.records import LACKING

    cells = [cell for cell in run.cells if not cell.control and (chosen is None or cell.id in chosen)]
    statuses = [cell.status for cell in cells]
    if all(status in LACKING for status in statuses):
        return _BACKEND_TROUBLE
    if any(cell.kept is not None for cell in cells):
        return _CHECK_FAILED
    return 0 if all(status in ("ok", *LACKING) for status in statuses) else _CHECK_FAILED
