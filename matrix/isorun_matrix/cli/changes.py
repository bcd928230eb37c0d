"""``isorun matrix compare`` and ``history``: what changed between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from isorun.cli import CHECK_FAILED


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="DIR", help="The run that the others are compared with.", show_default=False)
    ],
    others: Annotated[list[Path], typer.Argument(metavar="OTHER", help="Other runs.", show_default=False)],
    form: Annotated[
        Literal["terminal", "md", "json", "junit"], typer.Option("--format", help="The output format.")
    ] = "terminal",
    history: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="An earlier run of what DIR measured; shows how much sessions differ."),
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT",
            min=0,
            help="Exit with 1 if a cell is no longer ok, or its verdict is slower and it is by more than PERCENT.",
        ),
    ] = None,
) -> None:
    """Compare runs with the first: what is faster or slower, and what differs in machine, software and spec.

    A run is one session: with fewer than three runs in all, only large changes are told from what differs between
    sessions. `isorun matrix ab` measures two specs in one session.
    """
    import json

    from isorun.cli import console
    from isorun_matrix.report.comparison import junit
    from isorun_matrix.report.comparison.compare import compare as compare_runs
    from isorun_matrix.report.comparison.compare import regressions
    from isorun_matrix.results.folder import RunFolder, require_distinct

    runs, earlier = ([RunFolder(folder).run() for folder in folders] for folders in ((first, *others), history or ()))
    require_distinct([*runs, *earlier])
    comparison = compare_runs(runs, earlier)
    worse = regressions(comparison, fail_above or 0)
    match form:
        case "terminal":
            console.stdout().print(comparison.as_tables())
        case "json":
            typer.echo(json.dumps(comparison.as_document(), indent=1, allow_nan=False))
        case "md":
            typer.echo(comparison.as_tables().as_markdown(), nl=False)
        case "junit":
            typer.echo(junit.render(comparison, worse), nl=False)
    if fail_above is None:
        return
    for name, number, how in worse:
        console.note(f"{name}, run {number + 1}: {how}")
    if worse:
        raise typer.Exit(CHECK_FAILED)


def history(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of runs.", show_default=False)],
    only: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Show only cells whose id matches.")] = None,
) -> None:
    """Show how each cell changed over runs, in the order of their dates: p50 in ms, a text plot, and change points.

    Exits with 1 if a change point is new, which is one that is not found without the last run.
    """
    from isorun.cli import console
    from isorun_matrix.report import history as histories
    from isorun_matrix.results.folder import RunFolder, require_distinct

    runs, patterns = [RunFolder(folder).run() for folder in folders], only or ["*"]
    require_distinct(runs)
    out = console.stdout()
    out.print(histories.render(runs, patterns, out.width))
    if any(point.new for points in histories.changes(runs, patterns).values() for point in points):
        raise typer.Exit(1)
