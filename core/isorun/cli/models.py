"""Names of models and files on the command line, validated before any work begins."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isorun.cli import console
from isorun.errors import InvalidModel, IsorunError, UnsupportedModel, near_file
from isorun.models.hub import KNOWN, checkpoint_folder
from isorun.models.source import files_of, near_model
from isorun.models.tokenizer import FILE, places_of
from isorun.system.cache import Cache, expanded

if TYPE_CHECKING:
    import onnx_ir as ir

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="An ONNX file, a checkpoint's folder, or a name to fetch.", show_default=False
    ),
]
"""The argument of a command that names a model: see :func:`model_path`."""


def model_path(name: str, cache: Cache) -> Path:
    """The ONNX file or checkpoint folder for a model's name; a hub id is downloaded. Raises ``InvalidModel`` if there
    is no such file, with the closest name in its folder."""
    if not name:
        raise InvalidModel("The name of the model is empty. Pass an ONNX file, a folder, or a name to fetch")
    path = expanded(name)
    if path.exists():
        return path
    _check_link(path)
    if path.suffix == ".onnx" or path.is_absolute() or not (name in KNOWN or "/" in name):
        near = near_model(path, KNOWN)
        if not near and path.suffix != ".onnx" and not path.is_absolute():
            near = f". Expected a file, a folder, {', '.join(KNOWN)}, or OWNER/NAME on the Hugging Face hub"
        raise InvalidModel(f"There is no model {name}{near}")
    return fetched(name, cache)


def _check_link(path: Path) -> None:
    if path.is_symlink() and not path.exists():
        raise IsorunError(f"{path} is a broken link to {path.readlink()}")


def fetched(name: str, cache: Cache) -> Path:
    """The folder of a checkpoint, downloaded with a progress bar if it is not cached."""
    with console.transfer() as progress:
        return checkpoint_folder(name, cache, progress)


def names(listed: str) -> list[str]:
    """``A,B`` as a list."""
    return [name.strip() for name in listed.split(",")]


def check_input(path: Path, what: str, suffixes: Collection[str] = ()) -> None:
    """Reject a missing file, a folder, or a pipe, which cannot be read twice. Files of some suffixes, by default its
    own, are suggested in its place."""
    if path.is_dir():
        raise IsorunError(f"{path} is a folder; {what} must be a file")
    if path.exists() and not path.is_file():
        raise IsorunError(f"{path} is a pipe or a device; {what} must be a file, which can be read more than once")
    _check_link(path)
    if not path.is_file():
        raise IsorunError(f"There is no file {path}{near_file(path, suffixes=suffixes)}")


def check_output(path: Path, reads: Iterable[Path] = ()) -> Path:
    """Reject a path that cannot be written, before any work.

    Args:
        reads: the files that the command reads, models for their weights and the files of their text too, and the
            folders of checkpoints, which may hold graphs made from them.

    Returns:
        The file, of which ``path`` may be a link.

    Raises:
        IsorunError: it cannot be written, is no regular file, or is one that the command reads.
    """
    if path.exists() and not path.is_dir() and not path.is_file():
        raise IsorunError(f"{path} is a device or a pipe, and would be replaced. Name a file")
    try:
        path = path.resolve() if path.is_symlink() else path
    except (OSError, RuntimeError) as error:  # the latter until Python 3.13
        raise IsorunError(f"{path} is a link that leads to itself. Name a file") from error
    for read in _with_files_beside(reads) if path.exists() else ():
        beside = read.is_dir() and read.resolve() in path.resolve().parents and path.suffix != ".onnx"
        if path.samefile(read) or beside:
            what = f"a file of {read}" if beside else "a file that this command reads"
            raise IsorunError(f"{path} is {what} and would be overwritten. Name another file")
    if path.is_dir():
        raise IsorunError(f"{path} is a folder. Name a file in it")
    if path.parent.exists() and not path.parent.is_dir():
        raise IsorunError(f"Cannot write {path}: {path.parent} is not a folder")
    if not path.parent.is_dir():
        create = shlex.join(["mkdir", "-p", str(path.parent)])
        raise IsorunError(f"Cannot write {path}: the folder does not exist. Create it with `{create}`")
    try:
        # Permission bits do not tell (superuser, read-only file systems): try.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise IsorunError(f"Cannot write {path}: {error.strerror}") from error
    return path


def _with_files_beside(reads: Iterable[Path]) -> Iterator[Path]:
    """Files that a command reads, and those that models among them refer to."""
    for read in reads:
        yield read
        if read.suffix == ".onnx" and read.is_file():
            yield from (*files_of(read), *text_files(read).values())


def check_graph_output(path: Path, reads: Iterable[Path]) -> Path:
    """As :func:`check_output`, of a graph and the file with its weights."""
    reads = list(reads)
    checked = check_output(path, reads)
    check_output(path.with_name(f"{path.stem}.weights.bin"), reads)
    return checked


def text_files(model: Path) -> dict[str, Path]:
    """The files that an ONNX file needs to read text, by their names without the model's: the tokenizer, what changes
    it, and layers after pooling."""
    from isorun.models import dense
    from isorun.models.checkpoint import TOKENIZER_FILES, VOCABULARIES

    tokenizer = next((place for place in places_of(model) if place.is_file()), None)
    beside = {dense.FILE: model.with_name(f"{model.stem}.{dense.FILE}")}
    if tokenizer is not None:
        own = next(name for name in (*TOKENIZER_FILES, *VOCABULARIES) if tokenizer.name.endswith(name))
        prefix = tokenizer.name.removesuffix(own)
        names = (*TOKENIZER_FILES, *(VOCABULARIES if own in VOCABULARIES else ()))
        beside |= {name: tokenizer.with_name(f"{prefix}{name}") for name in names}
    return {name: path for name, path in beside.items() if path.is_file()}


def keep_settings(graph: ir.Model, model: Path, output: Path) -> None:
    """Write what the folder of an ONNX file says of its texts into a graph made from it, as ``isorun build`` does:
    lower case, pooling, prompts, and layers after pooling, which are put beside it."""
    from isorun.models import sentence_settings, sentences
    from isorun.models.text_reader import settings_folder

    if sentence_settings.METADATA in graph.metadata_props or not text_files(model):
        return
    try:
        kept = sentences.read(settings_folder(model.absolute()))
    except (InvalidModel, UnsupportedModel) as error:
        console.note(f"isorun: the settings of texts are not kept: {error}")
        return
    graph.metadata_props[sentence_settings.METADATA] = kept.to_json()
    kept.save_dense(output)


def copy_text_files(model: Path, output: Path) -> Path | None:
    """Copy what a model needs to read text next to a file made from it. Returns the tokenizer, or the vocabulary in its
    place; ``None`` if the model has none."""
    from isorun.models.checkpoint import VOCABULARIES

    copies = {
        name: Path(shutil.copyfile(path, output.with_name(f"{output.stem}.{name}")))
        for name, path in text_files(model).items()
    }
    return next((copies[name] for name in (FILE, *VOCABULARIES) if name in copies), None)
