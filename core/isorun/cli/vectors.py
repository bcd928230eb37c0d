"""Whether vectors may be searched together."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from isorun.cli import console, models, options
from isorun.errors import IsorunError
from isorun.system import json_files
from isorun.text.identity import compared

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)


@app.callback()
def vectors() -> None:
    """Vectors that `isorun embed` has written."""


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Vectors (.npy), or their .identity.json.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The vectors to compare with.")],
    as_json: options.AsJson = False,
) -> None:
    """Tell whether two sets of vectors are the same, compatible (with what a search loses), or different.

    The exit code is 1 if they are different.
    """
    verdict = compared(_record(first), _record(second))
    if as_json:
        console.json_out(asdict(verdict))
    else:
        print(f"{verdict.kind}: {verdict.reason}")
    if not verdict:
        raise typer.Exit(1)


def _record(path: Path) -> dict[str, Any]:
    vectors = path if path.suffix == ".npy" else None
    if vectors is not None:
        path = path.with_name(f"{path.stem}.identity.json")
    models.check_input(path, "the record of vectors")
    try:
        record = json_files.read(path)
    except ValueError as error:
        raise IsorunError(f"{path} is not a record of vectors: {error}") from error
    if not isinstance(record, dict):
        raise IsorunError(f"{path} is not a record of vectors: expected a JSON object")
    if vectors is not None and vectors.is_file():
        shape = np.load(vectors, mmap_mode="r").shape
        if shape[1:] != (record.get("dimension"),):
            raise IsorunError(
                f"{path} is not the record of {vectors}: these vectors have the shape {shape}, and the record is of "
                f"{record.get('dimension')} values each"
            )
    return record
