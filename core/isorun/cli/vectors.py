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
    models.check_input(path, "the record of vectors", (".npy", ".json"))
    try:
        record = json_files.read(path)
    except ValueError as error:
        raise IsorunError(f"{path} is not a record of vectors: {error}") from error
    if not isinstance(record, dict):
        raise IsorunError(f"{path} is not a record of vectors: expected a JSON object")
    if vectors is not None:
        _check_vectors(vectors, path, record)
    return record


def _check_vectors(path: Path, described: Path, record: dict[str, Any]) -> None:
    """Reject vectors that a record is not of."""
    models.check_input(path, "the vectors")
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise IsorunError(f"{path} is not a file of vectors (.npy): {error}") from error
    if not isinstance(vectors, np.ndarray) or vectors.dtype.kind not in "fiu":
        raise IsorunError(f"{path} is not a file of vectors: expected an array of numbers")
    if vectors.shape[1:] != (record.get("dimension"),):
        raise IsorunError(
            f"{described} is not the record of {path}: these vectors have the shape {vectors.shape}, and the record is "
            f"of {record.get('dimension')} values each"
        )
    if not record.get("stored") and vectors.dtype != np.float32:
        raise IsorunError(f"{described} is not the record of {path}: these vectors are {vectors.dtype}, not float32")
    if vectors.dtype.kind == "f" and not np.isfinite(vectors).all():
        raise IsorunError(f"{path} has vectors with NaN or infinity, which nothing can be searched with")
