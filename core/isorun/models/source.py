"""Models on their way to a backend: opened, named by a fingerprint, lowered, and kept.

The graph is read the first time that a model is seen. From then on the cache knows all that a session
needs, and opening the model again reads none of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isorun.errors import InvalidFeeds, InvalidModel, UnsupportedModel, near_file
from isorun.graph import code_digest
from isorun.system.cache import Cache, expanded, sha256
from isorun.types import LoweredModel, ModelInfo

if TYPE_CHECKING:
    import onnx

_FILE = "model.onnx"
_AS_IT_IS = "fp32"  # the precision for which a graph keeps its types
_PLAIN = "onnx"  # the dialect of a model that has no fused operators: it goes to a backend as it came


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as it was given.

    Attributes:
        path: its ONNX file; in the cache where it was given as bytes or as a checkpoint.
        fingerprint: SHA-256 over the file and the files that it keeps weights in (hexadecimal), and over ``outputs``.
        outputs: those of its outputs that are wanted, in their order; ``None`` for all.
    """

    path: Path
    fingerprint: str
    outputs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Quantized:
    """The table of a model's dense layers in 8 bits, as :mod:`isorun.compilation.calibration` makes it.

    Attributes:
        key: what names it.
        folder: where :func:`isorun.graph.transforms.precision.int8.load` finds it.
        note: what it came from, as plain data for provenance.
    """

    key: str
    folder: Path
    note: Mapping[str, Any]


def open_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto, cache: Cache, outputs: Sequence[str] | None = None
) -> ModelSource:
    """Find a model and name it.

    Args:
        model: an ONNX file, its bytes, an ``onnx.ModelProto``, or the folder of a checkpoint.
        cache: where fingerprints and what has to be made are kept.
        outputs: the outputs that are wanted, in their order; ``None`` for all. That the model has them is seen when its
            graph is read.

    Raises:
        InvalidModel: it is missing, damaged, or refers to files outside its folder.
        InvalidFeeds: the outputs are no names, none, or one twice.
    """
    source = _open(model, cache)
    if outputs is None:
        return source
    names = _output_names(outputs)
    return ModelSource(source.path, _for_outputs(source.fingerprint, names), names)


def _for_outputs(fingerprint: str, outputs: tuple[str, ...] | None) -> str:
    """The fingerprint of a whole model, made one for some of its outputs."""
    return fingerprint if outputs is None else sha256(repr((fingerprint, outputs)).encode())


def _output_names(outputs: Sequence[str]) -> tuple[str, ...]:
    if isinstance(outputs, str) or not all(isinstance(name, str) for name in outputs):
        raise InvalidFeeds(f"outputs is a list of names; {outputs!r} came")
    names = tuple(outputs)
    if not names:
        raise InvalidFeeds("outputs names no output: name at least one, or give None for all")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidFeeds(f"outputs names {twice!r} twice")
    return names


def _open(model: str | os.PathLike[str] | bytes | onnx.ModelProto, cache: Cache) -> ModelSource:
    if isinstance(model, bytes | bytearray | memoryview):
        return _from_bytes(bytes(model), "the model given as bytes", cache)
    if hasattr(model, "SerializeToString"):
        return _from_proto(model, cache)
    if not isinstance(model, str | os.PathLike):
        raise InvalidModel(
            f"A model is a path, bytes, an onnx.ModelProto or a checkpoint folder; a {type(model).__name__} came"
        )
    path = expanded(model).absolute()
    if path.is_dir():
        from isorun.models import checkpoint

        path = checkpoint.build_cached(path, cache)
    elif not path.is_file():
        if path.is_symlink() and not path.exists():
            raise InvalidModel(f"{path} is a link to {path.readlink()}, and nothing is there")
        if path.exists():
            raise InvalidModel(f"{path} is no regular file, which a model has to be: it is read more than once")
        raise InvalidModel(f"There is no model at {path}{_instead_of(path)}")
    return ModelSource(path, cache.fingerprint(lambda: _files_of(path), path))


def _instead_of(path: Path) -> str:
    if near := near_file(path):
        return near
    return "" if path.suffix else ". A checkpoint of that name is made a file first: isorun build NAME -o MODEL.onnx"


def lower(
    source: ModelSource,
    dialects: tuple[str, ...],
    cache: Cache,
    *,
    packed: bool = False,
    precision: str = "fp32",
    quantized: Quantized | None = None,
) -> LoweredModel:
    """The model in the first of a backend's dialects that it can be brought to.

    A model that is no encoder is handed on as it came, under the dialect ``onnx``, or written in the precision; so
    is one that was not given in the fused form and that no dialect can express.

    Args:
        source: the model.
        dialects: the backend's, in order of preference.
        cache: where lowered models are kept.
        packed: whether to remove padding (:mod:`isorun.graph.transforms.padding_removal`).
        precision: what to write the graph in (:mod:`isorun.graph.transforms.precision`); ``fp32`` keeps its types.
        quantized: the table that ``int8`` takes; a model that came quantized needs none, and stays as it is.

    Raises:
        UnsupportedModel: it was given in the fused form, and none of the dialects can express it; or its padding
            cannot be removed; or it cannot be written in the precision.
        InvalidModel: it cannot be read.
    """
    known, described = _inspect(source, cache)
    info = known.info
    if precision == "int8" and info.quantized:
        precision = _AS_IT_IS  # it is that already
    if packed and info.keeps_padding:
        raise UnsupportedModel(info.keeps_padding)
    if not info.fused:
        # OpenVINO refuses weights that are links out of the model's folder, as in the hub's cache: it is given a copy.
        linked = any((source.path.parent / location).is_symlink() for location in known.beside)
        if precision != _AS_IT_IS or source.outputs is not None or linked:
            return _lower(source, None, info, cache, packed=False, precision=precision, quantized=quantized)
        return LoweredModel(source.path, _PLAIN, source.fingerprint, info, described)
    refusals = []
    for dialect in dialects:
        try:
            return _lower(source, dialect, info, cache, packed=packed, precision=precision, quantized=quantized)
        except UnsupportedModel as error:
            refusals.append(error)
    if known.as_it_is and not packed and precision == _AS_IT_IS and source.outputs is None:
        return LoweredModel(source.path, _PLAIN, source.fingerprint, replace(info, fused={}), described)
    raise UnsupportedModel(
        "; ".join(dict.fromkeys(map(str, refusals))) or "The backend reads no dialect of the fused graph",
        [name for refusal in refusals for name in refusal.operators],
    )


def inspect(source: ModelSource, cache: Cache) -> tuple[ModelInfo, bool]:
    """What is known of a model in its fused form, and whether it was known already."""
    known, found = _inspect(source, cache)
    return known.info, found


@dataclass(frozen=True, slots=True)
class _Known:
    """What one reading of a model tells.

    Attributes:
        info: of its fused form, where it is an encoder.
        as_it_is: whether a runtime can read the file as it was given.
        beside: the files that it keeps weights in, as it names them.
    """

    info: ModelInfo
    as_it_is: bool
    beside: tuple[str, ...]


def _inspect(source: ModelSource, cache: Cache) -> tuple[_Known, bool]:
    """What is known of a model, and whether it was known already."""

    def make(_: Path) -> dict[str, Any]:
        from isorun.graph import describe, pipeline
        from isorun.graph.io import files

        with files.reading(str(source.path)):
            model, fused_here = pipeline.read(source.path, source.outputs)
            info = asdict(describe.describe(model))
        check_unchanged(source, cache)
        beside = files.external_files(files.read_proto(source.path))
        return {"info": info, "as_it_is": fused_here, "beside": beside}

    entry = cache.get_or_make("models", _key(source.fingerprint), make)
    info = ModelInfo.from_dict(entry.meta["info"])
    return _Known(info, entry.meta["as_it_is"], tuple(entry.meta["beside"])), entry.found


def _lower(
    source: ModelSource,
    dialect: str | None,
    info: ModelInfo,
    cache: Cache,
    *,
    packed: bool,
    precision: str,
    quantized: Quantized | None,
) -> LoweredModel:
    """Padding removed, written in a precision, lowered to a dialect: as asked, in this order."""

    def make(folder: Path) -> dict[str, Any]:
        from isorun.graph import pipeline
        from isorun.graph.io import files
        from isorun.graph.ops import lower as lowering
        from isorun.graph.transforms import padding_removal as removal
        from isorun.graph.transforms import precision as precisions
        from isorun.graph.transforms.precision import int8

        notes: dict[str, Any] = {} if source.outputs is None else {"outputs": list(source.outputs)}
        with files.reading(str(source.path)):
            graph, _ = pipeline.read(source.path, source.outputs)
            if packed:
                removal.remove(graph)
            if quantized:
                int8.quantize(graph, int8.load(quantized.folder))
                notes["int8"] = dict(quantized.note)
            elif precision != _AS_IT_IS:
                notes.update(precisions.write(graph, precision))
            lowered = graph if dialect is None else lowering.lower(graph, dialect)
        lowered.metadata_props.clear()  # the session answers from the model as given; a tokenizer is no runtime's
        files.write(lowered, folder / _FILE, beside_above=0)
        check_unchanged(source, cache)
        return {"notes": notes}

    parts = [dialect or _PLAIN, *(["packed"] if packed else []), *([precision] if precision != _AS_IT_IS else [])]
    if quantized:
        parts.append(quantized.key)
    entry = cache.get_or_make("lowered", _key(source.fingerprint, *parts), make)
    notes = entry.meta["notes"]
    return LoweredModel(entry.folder / _FILE, dialect or _PLAIN, source.fingerprint, info, entry.found, notes)


def check_unchanged(source: ModelSource, cache: Cache) -> None:
    """Check, after a model's file was read, that it is still the file that was opened.

    Raises:
        InvalidModel: it has changed, so that what was read may be another model than the fingerprint says.
    """
    found = cache.fingerprint(lambda: _files_of(source.path), source.path)
    if _for_outputs(found, source.outputs) != source.fingerprint:
        raise InvalidModel(f"{source.path} has changed since it was opened: open another session on it")


def _key(*parts: str) -> str:
    """A cache key of a fingerprint and what else decides the result."""
    return sha256("|".join((code_digest(), *parts)).encode())[:40]


def _from_proto(proto: Any, cache: Cache) -> ModelSource:
    from google.protobuf.message import EncodeError

    try:
        content = proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise InvalidModel(
            f"The onnx.ModelProto cannot be serialized ({error}). One above 2 GiB has to be saved with external "
            "data first: give the path of that file"
        ) from error
    return _from_bytes(content, "the onnx.ModelProto", cache)


def _from_bytes(content: bytes, name: str, cache: Cache) -> ModelSource:
    fingerprint = sha256(content)

    def make(folder: Path) -> dict[str, Any]:
        from isorun.graph.io import files

        files.parse(content, name)
        (folder / _FILE).write_bytes(content)
        return {}

    return ModelSource(cache.get_or_make("given", fingerprint, make).folder / _FILE, fingerprint)


def _files_of(path: Path) -> list[Path]:
    from isorun.graph.io import files

    return [path, *(path.parent / location for location in files.external_files(files.read_proto(path)))]
