"""Models and files as people name them on the command line, checked before any work begins."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from isorun.cli import console
from isorun.errors import InvalidModel, IsorunError, did_you_mean, near_file
from isorun.models.hub import KNOWN, checkpoint_folder
from isorun.models.tokenizer import FILE, places_of
from isorun.system.cache import Cache, expanded


def model_path(name: str, cache: Cache) -> Path:
    """The ONNX file or checkpoint folder that a model's name stands for; a hub id is fetched.

    Raises:
        InvalidModel: there is no such file; the message has the nearest name in its folder.
    """
    path = expanded(name)
    if path.exists():
        return path
    if path.suffix == ".onnx" or path.is_absolute() or not (name in KNOWN or "/" in name):
        near = near_file(path, KNOWN)
        if not near and path.suffix != ".onnx" and not path.is_absolute():
            near = f". A name is {', '.join(KNOWN)}, or OWNER/NAME on the Hugging Face hub"
        raise InvalidModel(f"There is no model {name}{near}")
    return fetched(name, cache)


def fetched(name: str, cache: Cache) -> Path:
    """The folder of a checkpoint, fetched with a progress bar where it is not here yet."""
    with console.transfer() as progress:
        return checkpoint_folder(name, cache, progress)


def names(given: str) -> list[str]:
    """``A,B`` as a list."""
    return [name.strip() for name in given.split(",")]


def check_input(path: Path, what: str) -> None:
    """Refuse a file that is not there, or is a folder."""
    if path.is_dir():
        raise IsorunError(f"{path} is a folder; {what} is a file")
    if not path.is_file():
        raise IsorunError(f"There is no file {path}{near_file(path)}")


def check_output(path: Path) -> None:
    """Refuse a file that cannot be written, before the work whose result it would hold."""
    if path.is_dir():
        raise IsorunError(f"{path} is a folder; name a file to write to, such as {path / 'model.onnx'}")
    if path.parent.exists() and not path.parent.is_dir():
        raise IsorunError(f"{path} cannot be written: {path.parent} is a file and no folder")
    if not path.parent.is_dir():
        raise IsorunError(f"{path} cannot be written: there is no folder {path.parent} (mkdir -p makes it)")
    try:
        # Permissions do not tell (a superuser, a read-only file system): writing does.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise IsorunError(f"{path} cannot be written: its folder does not take files ({error.strerror})") from error


def check_choice(what: str, given: str, choices: Sequence[str]) -> None:
    """Refuse what is none of the choices."""
    if given not in choices:
        raise IsorunError(f"There is no {what} {given!r}{did_you_mean(given, choices)}")


def check_apart(model: Path, weights: Sequence[str], output: Path) -> None:
    """Refuse to write over what is read: the model, or the files beside it that have its weights."""
    for written in (output, output.with_name(f"{output.stem}.weights.bin")):
        for read in (model, *(model.parent / name for name in weights)):
            if written.exists() and written.samefile(read):
                what = "the model itself" if read == model else f"the weights of {model}"
                raise IsorunError(f"{written} would be written, and it is {what}. Name another --output")


def copy_tokenizer(model: Path, made: Path) -> Path | None:
    """The tokenizer that belongs to a model, beside what was made of it; ``None`` where it has none."""
    tokenizer = next((place for place in places_of(model) if place.is_file()), None)
    return None if tokenizer is None else Path(shutil.copyfile(tokenizer, made.with_name(f"{made.stem}.{FILE}")))
