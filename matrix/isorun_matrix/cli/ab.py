"""``isorun matrix ab``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isorun.cli import CHECK_FAILED
from isorun_matrix.cli.run import Out, Resume, folder_of, running


def ab(
    context: typer.Context,
    spec_a: Annotated[Path, typer.Argument(metavar="SPEC_A", help="A YAML file.", show_default=False)],
    spec_b: Annotated[
        Path | None, typer.Argument(metavar="[SPEC_B]", help="Another one. Default: SPEC_A.", show_default=False)
    ] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="NAME", help="The isolated environment that the backends of B run in.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="The file or folder of a model in B.")
    ] = None,
    out: Out = None,
    resume: Resume = False,
    fail_above: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", min=0, help="Exit with 1 if B is not ok, or slower by more than PERCENT."),
    ] = None,
) -> None:
    """Measure two specs in turns in one session, and compare their cells: what differs between sessions cancels out.

    The sides can also differ in the environment, such as one with another version of a plugin, or in a model's file.
    """
    from isorun.cli import console
    from isorun.isolation import environments
    from isorun_matrix.execution import progress, rerun, runner
    from isorun_matrix.execution.plan import Choice
    from isorun_matrix.report.comparison import ab as comparison
    from isorun_matrix.results.folder import RunFolder
    from isorun_matrix.spec import pairs
    from isorun_matrix.spec.models import Model
    from isorun_matrix.spec.reader import load

    path = folder_of(out, f"{spec_a.stem}-ab", resume=resume)
    if spec_b is None and environment is None and not model:
        raise typer.BadParameter("expected SPEC_B, --environment or --model: in what the sides differ")
    first = load(spec_a)
    second = first if spec_b is None else load(spec_b)
    if environment is not None and environment not in second.environments:
        environments.get(environment)  # raises if it does not exist
    plain = {name: declared.model_dump() for name, declared in second.models.items()}
    models = {
        name: rerun.validated(changed, f"--model {name} is invalid", Model)
        for name, changed in rerun.replaced(plain, model or []).items()
    }
    combined, paired, lost = pairs.combine(first, pairs.changed(second, environment, models))
    if fail_above is not None and (uneven := pairs.in_one_environment(combined, paired)):
        raise typer.BadParameter(
            f"--fail-above needs both sides in environments, or neither: of {uneven[0].id}, one side alone has the "
            "round trip to a worker in its times. Set `environment` in the backends of the other side, too"
        )
    folder = RunFolder(path)
    shown = progress.Lines()
    shown.note(f"Cells on both sides: {len(paired)}; results go to {folder.path}")
    if first.load:
        shown.note("`load` is left out: both sides are compared by latency")
    with running(context, folder.path, shown):
        done = runner.run(combined, spec_a.absolute(), folder, shown, Choice(resume))
    compared = comparison.compare(done, paired)
    shown.note("")
    console.stdout().print(comparison.as_tables(compared))
    worse = [f"{name}: B has no such cell" for name in lost] + comparison.regressions(compared, fail_above or 0)
    for line in worse if fail_above is not None else [line for line in worse if ": B takes" not in line]:
        console.note(line)
    # What neither side can run, such as a GPU's backend without one, is no difference between them.
    run_somewhere = [cell for cell in compared if "ok" in (cell.a.status, cell.b.status)]
    undecided = not run_somewhere or any(cell.ratio is None for cell in run_somewhere)
    if undecided or (fail_above is not None and worse):
        raise typer.Exit(CHECK_FAILED)
