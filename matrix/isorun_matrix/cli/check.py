"""``isorun matrix check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isorun.cli import CHECK_FAILED


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
