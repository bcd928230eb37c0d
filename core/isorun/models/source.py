"""Opening models: any form in which a model is given becomes an ONNX file with a fingerprint."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.errors import InvalidArgument, InvalidModel, InvalidType, near_file
from isorun.system.cache import Cache, expanded, is_private, sha256

if TYPE_CHECKING:
    import onnx

FILE = "model.onnx"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as given.

    Attributes:
        path: its ONNX file; in the cache if it was given as bytes or as a checkpoint.
        content: SHA-256 over the file and its external weight files (hexadecimal).
        outputs: the outputs to compute, in this order; ``None`` for all.
        private: whether only its owner can read the file, so that what is made from it is private, too.
    """

    path: Path
    content: str
    outputs: tuple[str, ...] | None = None
    private: bool = False

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the content and ``outputs`` (hexadecimal)."""
        return self.content if self.outputs is None else sha256(repr((self.content, self.outputs)).encode())

    @property
    def models(self) -> tuple[str, ...]:
        """The fingerprints under which the cache finds what was made from the model."""
        return tuple(dict.fromkeys((self.fingerprint, self.content)))


def open_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto, cache: Cache, outputs: Sequence[str] | None = None
) -> ModelSource:
    """Find a model and compute its fingerprint.

    Args:
        model: an ONNX file, its bytes, an ``onnx.ModelProto``, or the folder of a checkpoint.
        cache: where fingerprints are kept, and models that were given as bytes or as a checkpoint.
        outputs: the outputs to compute, in this order; ``None`` for all. Unknown names are rejected later, when the
            graph is read.

    Raises:
        InvalidModel: the model is missing, damaged, or refers to files outside its folder.
        InvalidArgument: the outputs are not names, are empty, or repeat a name.
    """
    source = _open(model, cache, whole=outputs is None)
    if outputs is None:
        return source
    return replace(source, outputs=output_names(outputs))


def output_names(outputs: Sequence[str]) -> tuple[str, ...]:
    """The outputs to compute, checked as :func:`open_model` says."""
    if not isinstance(outputs, list | tuple) or not all(isinstance(name, str) for name in outputs):
        raise InvalidType(f"outputs must be a list of names, got {outputs!r}")
    names = tuple(outputs)
    if not names:
        raise InvalidArgument("outputs is empty. Name at least one output, or pass None for all")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InvalidArgument(f"outputs repeats {repeated!r}")
    return names


def _open(model: str | os.PathLike[str] | bytes | onnx.ModelProto, cache: Cache, *, whole: bool) -> ModelSource:
    if isinstance(model, bytes | bytearray | memoryview):
        return _from_bytes(bytes(model), "the model given as bytes", cache)
    if hasattr(model, "SerializeToString"):
        return _from_proto(model, cache)
    if not isinstance(model, str | os.PathLike):
        raise InvalidModel(
            f"model must be a path, bytes, an onnx.ModelProto or a checkpoint folder, got {type(model).__name__}"
        )
    if not os.fspath(model):
        raise InvalidModel("model is an empty path. Pass an ONNX file or the folder of a checkpoint")
    path = expanded(model).absolute()
    if path.is_dir():
        from isorun.models import checkpoint

        path = checkpoint.build_cached(path, cache, whole=whole)
    elif not path.is_file():
        if path.is_symlink() and not path.exists():
            raise InvalidModel(f"{path} is a broken link to {path.readlink()}")
        if path.exists():
            raise InvalidModel(f"{path} is not a regular file. Models are read more than once: pipes are rejected")
        raise InvalidModel(f"There is no model at {path}{_suggestion(path)}")
    fingerprint = cache.fingerprint(lambda: files_of(path), path)
    return ModelSource(path, fingerprint, private=is_private([path]))


def near_model(path: Path, others: Iterable[str] = ()) -> str:
    """The end of a message about a missing model: the closest ONNX file or checkpoint in its folder."""
    if path.as_posix().partition(":/")[0].rpartition("/")[2] in ("http", "https", "s3", "gs", "hf"):
        return ". Models are not downloaded from addresses: download it and pass its path"
    return near_file(path, others, suffixes=(".onnx",), folders_with=("config.json", "modules.json"))


def _suggestion(path: Path) -> str:
    if near := near_model(path):
        return near
    return "" if path.suffix else ". For a checkpoint of that name, build a file first: isorun build NAME -o MODEL.onnx"


def check_unchanged(source: ModelSource, cache: Cache) -> None:
    """Check, after a model's file was read, that it is still the file that was opened.

    Raises:
        InvalidModel: it has changed, so what was read may not match the fingerprint.
    """
    if cache.fingerprint(lambda: files_of(source.path), source.path) != source.content:
        raise InvalidModel(f"{source.path} has changed since it was opened. Open a new session")


def _from_proto(proto: Any, cache: Cache) -> ModelSource:
    from google.protobuf.message import EncodeError

    try:
        content = proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise InvalidModel(
            f"The onnx.ModelProto cannot be serialized ({error}). If it is above 2 GiB, save it with external data "
            "and pass the path of that file"
        ) from error
    return _from_bytes(content, "the onnx.ModelProto", cache)


def _from_bytes(content: bytes, name: str, cache: Cache) -> ModelSource:
    fingerprint = sha256(content)

    def make(folder: Path) -> dict[str, Any]:
        from isorun.graph.io import files

        files.parse(content, name)
        (folder / FILE).write_bytes(content)
        return {}

    entry = cache.get_or_make("given", fingerprint, make, models=[fingerprint], private=True)
    return ModelSource(entry.folder / FILE, fingerprint, private=True)


def files_of(path: Path) -> list[Path]:
    """The files of a model: the ONNX file, and those with its weights."""
    from isorun.graph.io import files

    return [path, *(path.parent / location for location in files.external_files(files.read_proto(path)))]
