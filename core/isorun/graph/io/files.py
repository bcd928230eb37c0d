"""Reading and writing ONNX files.

Reading leaves the weights where they are: external data is mapped from its file when it is used. Everything that a
model's contents can be wrong in is an :class:`isorun.errors.InvalidModel`: see :func:`reading`.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx.external_data_helper import uses_external_data

from isorun.errors import InvalidModel, IsorunError
from isorun.graph.io import external, maps, structure

SINGLE_FILE_LIMIT = 2**31 - 2**24
"""A protobuf message ends at 2 GiB: models with more weights than this have them beside, in bytes."""

INLINE_LIMIT = 1024  # bytes; small tensors stay in the graph, where runtimes fold them
_FILES, _NAME = "isorun.files", "isorun.name"  # notes of a model: the files that its weights are in, and its name
_ALIGNMENT = 4096  # bytes; so that a runtime can map a tensor from the file


def read_proto(path: Path) -> onnx.ModelProto:
    """Read a model's graph, leaving external data on disk.

    Raises:
        InvalidModel: not an ONNX model, a truncated one, one with external data outside its folder, or one whose
            structure is not valid (:func:`isorun.graph.io.structure.check`).
    """
    try:
        if stat.S_ISFIFO(path.stat().st_mode):  # to open it would wait for a writer
            raise InvalidModel(f"{path} cannot be read: it is a pipe, and a model has to be a regular file")
        content = path.read_bytes()
    except OSError as error:
        raise InvalidModel(f"{path} cannot be read: {error.strerror}") from error
    return parse(content, str(path), path)


def parse(content: bytes, name: str, path: Path | None = None) -> onnx.ModelProto:
    """A model from its bytes.

    Args:
        content: a serialized ``onnx.ModelProto``.
        name: what to call it in an error.
        path: the file that it is from, beside which its external data is; ``None`` where it may have none.
    """
    if not content:
        raise InvalidModel(f"{name} is empty")
    # Every writer puts the version of the format first: a file that begins like that and cannot be read was cut.
    begins_well = content[:1] == b"\x08"
    try:
        proto = onnx.ModelProto.FromString(content)
    except DecodeError as error:
        what = "is cut short or damaged" if begins_well else "is not an ONNX model"
        raise InvalidModel(f"{name} {what}: {error}") from error
    if not proto.ir_version or not proto.HasField("graph"):
        raise InvalidModel(f"{name} is {'an ONNX model without a graph' if begins_well else 'not an ONNX model'}")
    if not proto.opset_import:
        raise InvalidModel(f"{name} is cut short: it does not say which operators (opset_import) it uses")
    with reading(name):
        found = structure.check(proto, name)
        _check_sizes(found, name, len(content))
        external.check(found, name, path)
    return proto


def external_files(proto: onnx.ModelProto) -> list[str]:
    """The files that a model keeps weights in, as it names them, in order of first use."""
    return external.locations(structure.tensors(proto))


def read(path: Path) -> ir.Model:
    """Read a model for rewriting, its external data mapped from its folder on use.

    Raises:
        InvalidModel: as :func:`read_proto`.
    """
    proto = read_proto(path)
    found = structure.tensors(proto)
    external.anchor(found, path)
    model = from_proto(proto, str(path))
    model.meta[_FILES] = frozenset(external.locations(found))
    return model


def from_proto(proto: onnx.ModelProto, name: str) -> ir.Model:
    """A model for rewriting.

    Args:
        proto: the model, its structure checked.
        name: what to call it in an error.

    Raises:
        InvalidModel: it is not valid.
    """
    with reading(name):
        model = maps.deserialize(proto)
    model.meta[_NAME] = name
    return model


def check_files(model: ir.Model) -> None:
    """Check again that a model has tensors in no other files than those that were checked when it was read.

    Raises:
        InvalidModel: it has, which inlining a function must not bring about.
    """
    if (files := model.meta.get(_FILES)) is not None:
        external.check_again(model, files)


@contextmanager
def reading(name: str, *, except_for: type[Exception] = IsorunError) -> Iterator[None]:
    """The one place where what fails on a model's contents becomes an :class:`isorun.errors.InvalidModel`.

    Args:
        name: what to call the model.
        except_for: errors that stay as they are, besides isorun's own.

    Raises:
        InvalidModel: its cause is what was raised inside.
    """
    try:
        yield
    except (IsorunError, except_for):
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        raise InvalidModel(
            f"{name} holds no valid graph ({reason}). If onnx.checker.check_model accepts it, report this"
        ) from error


def write(model: ir.Model, path: Path, *, beside_above: int) -> None:
    """Write a model. One tensor at a time is in memory where the weights are beside it.

    Args:
        model: what to write; it stays as it is.
        path: the ONNX file. It appears whole or not at all.
        beside_above: with more bytes of weights than this, they go to ``<stem>.weights.bin`` beside the file.

    Raises:
        OSError: the folder cannot be written to, or is full.
        InvalidModel: the model cannot be serialized, or a weight cannot be computed or read.
    """
    beside = weight_bytes(model) > beside_above
    part = path.with_name(f".{path.name}.part")
    try:
        with reading(model.meta.get(_NAME, "The model"), except_for=OSError):
            external.load_attributes(model)
            if not beside:
                ir.external_data.load_to_model(model)
            ir.save(
                model,
                part,
                format="protobuf",
                external_data=f"{path.stem}.weights.bin" if beside else None,
                size_threshold_bytes=INLINE_LIMIT,
                alignment=_ALIGNMENT,
                align_threshold=INLINE_LIMIT,
            )
            maps.restore(part, model)
        part.replace(path)
    except OSError as error:
        if error.errno is None:  # not of the system: onnx_ir's, of a file of weights that became shorter meanwhile
            raise InvalidModel(str(error)) from error
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def weight_bytes(model: ir.Model) -> int:
    """The size of a model's weights."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def _check_sizes(tensors: Iterable[onnx.TensorProto], name: str, limit: int) -> None:
    """Refuse tensors in the file itself that are larger than the file: to read one would fill the memory."""
    for tensor in tensors:
        size = 1
        for length in tensor.dims:
            if length < 0:
                raise InvalidModel(f"{name}: tensor {tensor.name!r} has a dimension of {length}")
            size *= length
        # The smallest elements take 2 bits; numbers in `int32_data` take a byte or more, of any type.
        if size > limit * 4 and not uses_external_data(tensor):
            dims = " x ".join(map(str, tensor.dims))
            raise InvalidModel(f"{name}: tensor {tensor.name!r} is {dims}, but the file has only {limit} bytes")
