"""Reading and writing ONNX files.

Reading leaves external data on disk, where it is mapped when it is used. Any error in a model's contents raises
:class:`isorun.errors.InvalidModel`: see :func:`reading`.
"""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx.external_data_helper import uses_external_data

from isorun.errors import InvalidModel, IsorunError
from isorun.graph.io import external, maps, nodes, storage, structure
from isorun.system.interruption import interrupts

SINGLE_FILE_LIMIT = 2**31 - 2**24
"""Models with more bytes of weights store them externally, since a protobuf message is limited to 2 GiB."""

INLINE_LIMIT = 1024  # bytes; smaller tensors stay in the graph, where runtimes fold them
# Keys in a model's meta: its external data files, its name, and whether it was changed on reading.
_FILES, _NAME, _CHANGED = "isorun.files", "isorun.name", "isorun.changed"
_OPSET = 17  # where a model has no operator of ONNX's own: one that every runtime has supported for years
_LFS_POINTER = b"version https://git-lfs"
ALIGNMENT = 4096  # bytes; allows a runtime to map tensors from the file


def read_proto(path: Path) -> onnx.ModelProto:
    """Read a model's graph, leaving external data on disk.

    Raises:
        InvalidModel: the file is not an ONNX model or is truncated, its external data is outside its folder, or its
            structure is invalid (:func:`isorun.graph.io.structure.check`).
    """
    return _parse(_content(path), str(path), path)[0]


def _content(path: Path) -> bytes:
    try:
        if stat.S_ISFIFO(path.stat().st_mode):  # opening it would block until there is a writer
            raise InvalidModel(f"{path} cannot be read: expected a regular file, got a pipe")
        return path.read_bytes()
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror}") from error


def parse(content: bytes, name: str) -> onnx.ModelProto:
    """Parse a model in memory, called by a name in error messages."""
    return _parse(content, name, None)[0]


def _parse(content: bytes, name: str, path: Path | None) -> tuple[onnx.ModelProto, bool]:
    """A model, and whether its nodes were out of order."""
    if not content:
        raise InvalidModel(f"{name} is empty. Download or export the model again")
    if content.startswith(_LFS_POINTER):
        raise InvalidModel(f"{name} is a Git LFS pointer, not the model. Fetch it with `git lfs pull`")
    # Every writer puts the format version first: an unreadable file that begins with it is truncated or damaged.
    begins_well = content[:1] == b"\x08"
    try:
        proto = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        problem = "is truncated or damaged" if begins_well else "is not an ONNX model"
        if not begins_well and (actual := _other_format(name, content)):
            raise InvalidModel(f"{name} is {actual}") from error
        raise InvalidModel(f"{name} {problem} ({error}). Download or export the model again") from error
    if not proto.ir_version or not proto.HasField("graph"):
        raise InvalidModel(f"{name} is {'an ONNX model without a graph' if begins_well else 'not an ONNX model'}")
    if not proto.opset_import:
        raise InvalidModel(f"{name} is truncated: it has no opset_import. Download or export the model again")
    with reading(name):
        was_sorted = structure.check(proto, name)
        tensors = structure.tensors(proto)
        _check_sizes(tensors, name, len(content))
        external.check(tensors, name, path)
    return proto, was_sorted


def external_files(proto: onnx.ModelProto) -> list[str]:
    """The external data files of a model, as it names them, in order of first use."""
    return external.locations(structure.tensors(proto))


def read(path: Path) -> ir.Model:
    """Read a model as a graph; its external data is mapped when it is used.

    Raises:
        InvalidModel: as :func:`read_proto`.
    """
    proto, was_sorted = _parse(_content(path), str(path), path)
    tensors = structure.tensors(proto)
    external.anchor(tensors, path)
    model = from_proto(proto, str(path))
    model.meta[_FILES] = frozenset(external.locations(tensors))
    if was_sorted:  # ONNX's reference evaluator runs nodes in the order of the file
        mark_changed(model)
    return model


def serialized(model: ir.Model, folder: Path) -> bytes:
    """A model whose weights stay in files of a folder, with locations relative to it."""
    proto = ir.serde.serialize_model(model)
    external.relocate(structure.tensors(proto), folder)
    return proto.SerializeToString()


def from_proto(proto: onnx.ModelProto, name: str) -> ir.Model:
    """Convert a model whose structure has been checked to a graph.

    Args:
        proto: the model.
        name: its name in error messages.

    Raises:
        InvalidModel: it is invalid.
    """
    with reading(name):
        readable = storage.readable(proto, name)
        model = maps.deserialize(readable)
    opsets = [model.opset_imports, *(function.opset_imports for function in model.functions.values())]
    changed = [readable is not proto, *(_rename_domain(versions) for versions in opsets)]
    if "" not in model.graph.opset_imports:  # of other operators alone, as scikit-learn's, or of functions
        version = max(versions.get("", 0) for versions in opsets)
        model.graph.opset_imports[""] = version or _OPSET
        changed.append(bool(version))
    model.meta[_NAME] = name
    if any(changed):
        mark_changed(model)
    return model


def is_changed(model: ir.Model) -> bool:
    """Whether a model was changed on reading, since not every runtime reads its file: for example sparse tensors."""
    return bool(model.meta.get(_CHANGED))


def mark_changed(model: ir.Model) -> None:
    """Note that runtimes must not read a model's own file: see :func:`is_changed`."""
    model.meta[_CHANGED] = True


def check_files(model: ir.Model) -> None:
    """Check that all external data of a model is in files that were checked when it was read.

    Raises:
        InvalidModel: it is not, for example after inlining a function.
    """
    if (files := model.meta.get(_FILES)) is not None:
        external.check_again(model, files)


@contextmanager
def reading(name: str, *, except_for: type[Exception] = IsorunError) -> Iterator[None]:
    """Convert errors in a model's contents to :class:`isorun.errors.InvalidModel`.

    Within it, NumPy computes as usual, whatever the application has set with ``numpy.seterr``.

    Args:
        name: the model's name in error messages.
        except_for: errors to re-raise unchanged, besides isorun's own.

    Raises:
        InvalidModel: with the original error as its cause.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except (IsorunError, except_for):
        raise
    except Exception as error:
        if interrupts(error):
            raise
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        raise InvalidModel(
            f"{name} is not a valid graph ({reason}). If onnx.checker.check_model accepts it, report a bug"
        ) from error


def write(model: ir.Model, path: Path, *, beside_above: int = SINGLE_FILE_LIMIT) -> None:
    """Write a model atomically. With external weights, one tensor at a time is in memory.

    Args:
        model: the model, which is unchanged.
        path: the ONNX file.
        beside_above: weights of more bytes than this are written to ``<stem>.weights.bin`` beside the file.

    Raises:
        OSError: the folder is not writable, or the disk is full.
        InvalidModel: the model cannot be serialized, or a weight cannot be computed or read.
    """
    beside = f"{path.stem}.weights.bin" if weight_bytes(model) > beside_above else None
    with writing(model, path) as temporary:
        external.load_attributes(model)
        if beside is None:
            ir.external_data.load_to_model(model)
        ir.save(
            model,
            temporary,
            format="protobuf",
            external_data=beside,
            size_threshold_bytes=INLINE_LIMIT,
            alignment=ALIGNMENT,
            align_threshold=INLINE_LIMIT,
        )
        for file in sorted(temporary.parent.iterdir()):
            if not file.stat().st_size:  # all weights are small
                file.unlink()
        maps.restore_file(temporary, model)


@contextmanager
def writing(model: ir.Model, path: Path) -> Iterator[Path]:
    """A temporary file that becomes a model's file. Files beside it become those beside the model's, before it does:
    weights are mapped where the model is in use, and must not change there.

    Raises:
        OSError: it cannot be written.
        InvalidModel: the model cannot be serialized, or a weight cannot be computed or read.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            temporary = Path(folder) / path.name
            with reading(model.meta.get(_NAME, "The model"), except_for=OSError):
                yield temporary
            for beside in sorted(Path(folder).iterdir()):
                if beside != temporary:
                    beside.replace(path.with_name(beside.name))
            temporary.replace(path)
    except OSError as error:
        if error.errno is None:  # raised by onnx_ir: a weight file shrank in the meantime
            raise InvalidModel(str(error)) from error
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror or error}") from error


def weight_bytes(model: ir.Model) -> int:
    """The size of a model's weights, in bytes."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def _rename_domain(opsets: dict[str, int]) -> bool:
    """Give ONNX's own operators the domain that their nodes have; whether it had the other name."""
    aliases = [name for name in opsets if nodes.domain(name) != name]
    for name in aliases:
        opsets[nodes.domain(name)] = opsets.pop(name)
    return bool(aliases)


def _check_sizes(tensors: Iterable[onnx.TensorProto], name: str, limit: int) -> None:
    """Reject inline tensors that are larger than the file: reading one would exhaust memory."""
    for tensor in tensors:
        size = 1
        for length in tensor.dims:
            if length < 0:
                raise InvalidModel(f"{name}: tensor {tensor.name!r} has a dimension of {length}")
            size *= length
        # The smallest elements have 2 bits; numbers in `int32_data` take at least a byte.
        if size > limit * 4 and not uses_external_data(tensor):
            dims = " x ".join(map(str, tensor.dims))
            raise InvalidModel(f"{name}: tensor {tensor.name!r} is {dims}, but the file has only {limit} bytes")


def _other_format(name: str, content: bytes) -> str:
    """What a file that is not an ONNX model is, and what to do with it; empty if unknown."""
    suffix = Path(name).suffix.lower()
    if suffix == ".safetensors":
        return "the weights of a checkpoint, not an ONNX model. Pass its folder, which has config.json too"
    if suffix in (".pt", ".pth", ".bin", ".ckpt"):
        return (
            "a file of PyTorch, not an ONNX model. Pass the folder of a checkpoint with model.safetensors, or export "
            "the model with torch.onnx.export"
        )
    if content[4:8] == b"ORTM":
        return "a model in ONNX Runtime's own format, not an ONNX model. Pass the .onnx file that it was made from"
    if content.startswith(b"PK\x03\x04"):
        return "a zip archive, not an ONNX model. Unpack it and pass the file or folder inside"
    return ""
