"""``isorun matrix run``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from isorun.cli import BACKEND_TROUBLE, CHECK_FAILED, INTERRUPTED
from isorun_matrix.cli import report

if TYPE_CHECKING:
    from isorun_matrix.execution.plan import Choice
    from isorun_matrix.execution.progress import Lines
    from isorun_matrix.results.records import Run
    from isorun_matrix.spec.spec import Spec

_OUT = "isorun-results"
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out and keep what is already measured.")]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder for results. Default: a new one in isorun-results.")
]


def run(
    context: typer.Context,
    spec: Annotated[
        Path,
        typer.Argument(metavar="SPEC", help="A YAML file, or the run.json of a run to repeat.", show_default=False),
    ],
    out: Out = None,
    resume: Resume = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the environments to create and the cells to run, and stop.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Measure only cells whose id matches, such as 'bert/*/openvino'."),
    ] = None,
    remeasure: Annotated[
        Literal["disturbed"] | None, typer.Option(help="With --resume: repeat disturbed rounds once more.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="With a run.json: where a model's file or folder is on this machine."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Run the spec's cells for this machine."),
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

    from isorun_matrix.execution import environments, progress, rerun, runner
    from isorun_matrix.execution.plan import Choice, plan
    from isorun_matrix.results.folder import RunFolder
    from isorun_matrix.results.layout import RUN
    from isorun_matrix.spec.reader import load

    path = folder_of(out, spec.stem, resume=resume)
    if remeasure and not resume:
        raise typer.BadParameter("--remeasure needs --resume and --out, the folder of the run to continue")
    is_record = spec.name == RUN
    if model and not is_record:
        raise typer.BadParameter("--model needs the run.json of a run; in a spec, change the path of the model")
    loaded, fingerprints = rerun.load(spec, model or []) if is_record else (load(spec), {})
    if ray is not None and machine is not None:
        raise typer.BadParameter("--machine and --ray are mutually exclusive")
    if ray is None and (machine is not None or loaded.is_divided):
        loaded = _on(loaded, machine)
    planned = plan(loaded, 0)
    chosen = None if only is None else planned.select(only)
    if dry_run:
        cells = [cell for cell in planned.cells if not cell.control and (chosen is None or cell.id in chosen)]
        lines = [str(planned), *environments.preview(loaded), *(f"cell {cell.id}" for cell in cells)]
        typer.echo("\n".join(lines))
        return
    folder = RunFolder(path)
    shown = progress.Lines()
    shown.note(f"{planned}; results go to {folder.path}")
    selected = Choice(resume, chosen, remeasure is not None, fingerprints)
    with running(context, folder.path, shown):
        if ray is not None:
            _run_on_cluster(loaded, spec.absolute(), folder.path, ray, shown, selected)
            return
        done = runner.run(loaded, spec.absolute(), folder, shown, selected)
    shown.note("")
    report.show(done)
    shown.note(f"More: isorun matrix report {shlex.quote(str(folder.path))} --format html --output report.html")
    if code := _exit_code(done, chosen):
        raise typer.Exit(code)


def folder_of(out: Path | None, name: str, *, resume: bool) -> Path:
    """The folder of a run: ``out``, else a new one for the run that starts now. Raises ``typer.BadParameter`` if a run
    is to be continued, and no folder is given."""
    from datetime import datetime

    if resume and out is None:
        raise typer.BadParameter("--resume needs --out, the folder to continue")
    return out or Path(_OUT) / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


@contextmanager
def running(context: typer.Context, folder: Path, shown: Lines) -> Iterator[None]:
    """While a command works in a folder: one that is stopped explains how to continue."""
    import shlex

    try:
        yield
    except (KeyboardInterrupt, OSError) as stopped:
        words = ["isorun", "matrix", str(context.info_name), *_arguments(context), "--out", str(folder), "--resume"]
        again = shlex.join(words)
        shown.note(f"Stopped. Finished measurements are kept. Continue with:\n  {again}")
        if isinstance(stopped, OSError):  # a full disk
            raise
        raise typer.Exit(INTERRUPTED) from None


def _arguments(context: typer.Context) -> Iterator[str]:
    """The arguments of a command as they were given, without those that say where and how it continues."""
    for parameter in context.command.params:
        value = context.params[str(parameter.name)]
        if parameter.name in ("out", "resume") or value is False or value == parameter.default:
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            yield from [] if parameter.param_type_name == "argument" else parameter.opts[:1]
            yield from [] if item is True else [str(item)]


def _run_on_cluster(spec: Spec, source: Path, out: Path, address: str, shown: Lines, choice: Choice) -> None:
    import shlex

    from isorun_matrix.execution.cluster import driver

    runs, stopped = driver.run(spec, source, out, address, shown, choice)
    report.show_machines(runs)
    for name, reason in stopped.items():
        shown.note(f"{name} stopped: {reason}. Continue with --resume")
    shown.note(f"More: isorun matrix report {shlex.quote(str(out))} --format html --output report.html")
    codes = {_exit_code(run, choice.only) for run in runs.runs.values()}
    if code := CHECK_FAILED if stopped or CHECK_FAILED in codes else min(codes):
        raise typer.Exit(code)


def _on(spec: Spec, machine: str | None) -> Spec:
    from isorun.errors import SpecError, did_you_mean

    if machine is None:
        raise SpecError(
            f"Backends or models of this spec name machines. Choose one with --machine NAME: {', '.join(spec.machines)}"
        )
    if machine not in spec.machines:
        raise SpecError(f"The spec has no machine {machine!r}{did_you_mean(machine, spec.machines)}")
    return spec.on(machine)


def _exit_code(run: Run, chosen: Collection[str] | None) -> int:
    """1 if outputs were wrong, or a cell failed, also under load, or is unchecked; 3 if no cell has an available
    backend; else 0."""
    from isorun_matrix.results.records import LACKING

    cells = [cell for cell in run.cells if not cell.control and (chosen is None or cell.id in chosen)]
    statuses = [cell.status for cell in cells]
    if all(status in LACKING for status in statuses):
        return BACKEND_TROUBLE
    if any(cell.kept is not None or any(load.status != "ok" for load in cell.loads) for cell in cells):
        return CHECK_FAILED
    return 0 if all(status in ("ok", *LACKING) for status in statuses) else CHECK_FAILED
