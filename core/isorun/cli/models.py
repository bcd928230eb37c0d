"""Models and files as people name them on the command line, checked before any work begins."""

from __future__ import annotations

import tempfile
from difflib import get_close_matches
from pathlib import Path

from isorun.cache import Cache
from isorun.cli import console
from isorun.errors import InvalidModel, IsorunError
from isorun.fetch import KNOWN, checkpoint_folder


def model_path(name: str, cache: Cache) -> Path:
    """The ONNX file or checkpoint folder that a model's name stands for; a hub id is fetched.

    Raises:
        InvalidModel: there is no such file; the message has the nearest name in its folder.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    if path.suffix == ".onnx" or path.is_absolute() or not (name in KNOWN or "/" in name):
        raise InvalidModel(f"There is no model {name}{_near(path, KNOWN)}")
    return fetched(name, cache)


def fetched(name: str, cache: Cache) -> Path:
    """The folder of a checkpoint, fetched with a progress bar where it is not here yet."""
    with console.download() as progress:
        return checkpoint_folder(name, cache, progress)


def check_input(path: Path, what: str) -> None:
    """Refuse a file that is not there, or is a folder."""
    if path.is_dir():
        raise IsorunError(f"{path} is a folder; {what} is a file")
    if not path.is_file():
        raise IsorunError(f"There is no file {path}{_near(path)}")


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


def _near(path: Path, others: dict[str, str] | None = None) -> str:
    beside = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, [*beside, *(others or {})], n=1, cutoff=0.6)
    if not near:
        return ""
    return f"; did you mean {path.parent / near[0] if near[0] in beside else near[0]}?"
