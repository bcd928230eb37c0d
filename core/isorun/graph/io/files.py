"""Reading and writing ONNX files.

Reading leaves the weights where they are: external data is mapped from its file when it is used. A model
that names external data outside its own folder is refused before anything of it is opened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx.external_data_helper import uses_external_data

from isorun.errors import InvalidModel
from isorun.graph.io import maps

SINGLE_FILE_LIMIT = 2**31 - 2**24
"""A protobuf message ends at 2 GiB: models with more weights than this have them beside, in bytes."""

_INLINE_LIMIT = 1024  # bytes; small tensors stay in the graph, where runtimes fold them
_ALIGNMENT = 4096  # bytes; so that a runtime can map a tensor from the file


def read_proto(path: Path) -> onnx.ModelProto:
    """Read a model's graph, leaving external data on disk.

    Raises:
        InvalidModel: not an ONNX model, a truncated one, or one with external data outside its folder.
    """
    try:
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
    sizes = {}
    for location in external_files(proto):
        if path is None:
            raise InvalidModel(
                f"{name} keeps weights in the file {location!r}: give the model's path, not its contents"
            )
        sizes[location] = _size_inside(path, location)
    for tensor in _tensors(proto):
        if uses_external_data(tensor):
            _check_extent(name, tensor, sizes)
    return proto


def external_files(proto: onnx.ModelProto) -> list[str]:
    """The files that a model keeps weights in, as it names them, in order of first use."""
    found: dict[str, None] = {}
    for tensor in _tensors(proto):
        if uses_external_data(tensor):
            found.update((entry.value, None) for entry in tensor.external_data if entry.key == "location")
    return list(found)


def read(path: Path) -> ir.Model:
    """Read a model for rewriting, its external data mapped from its folder on use.

    Raises:
        InvalidModel: as :func:`read_proto`; or its graph is none, such as one with two values of one name.
    """
    model = from_proto(read_proto(path), str(path))
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def from_proto(proto: onnx.ModelProto, name: str) -> ir.Model:
    """A model for rewriting.

    Args:
        proto: the model.
        name: what to call it in an error.

    Raises:
        InvalidModel: its graph is none.
    """
    try:
        return maps.deserialize(proto)
    except (ir.serde.SerdeError, ValueError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise InvalidModel(f"{name} holds no valid graph: {cause}") from error


def write(model: ir.Model, path: Path, *, beside_above: int) -> None:
    """Write a model. One tensor at a time is in memory where the weights are beside it.

    Args:
        model: what to write; it stays as it is.
        path: the ONNX file. It appears whole or not at all.
        beside_above: with more bytes of weights than this, they go to ``<stem>.weights.bin`` beside the file.

    Raises:
        OSError: the folder cannot be written to, or is full.
    """
    beside = weight_bytes(model) > beside_above
    part = path.with_name(f".{path.name}.part")
    try:
        ir.save(
            model,
            part,
            format="protobuf",
            external_data=f"{path.stem}.weights.bin" if beside else None,
            size_threshold_bytes=_INLINE_LIMIT,
            alignment=_ALIGNMENT,
            align_threshold=_INLINE_LIMIT,
        )
        maps.restore(part, model)
        part.replace(path)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def weight_bytes(model: ir.Model) -> int:
    """The size of a model's weights."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def _tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Every tensor of a model, those in nodes' attributes, sub-graphs and functions included."""
    found = list(proto.graph.initializer)
    stack: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while stack:
        for node in stack.pop().node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    found.append(attribute.t)
                found.extend(attribute.tensors)
                graphs = [attribute.g, *attribute.graphs] if attribute.HasField("g") else list(attribute.graphs)
                for graph in graphs:
                    found.extend(graph.initializer)
                    stack.append(graph)
    return found


def _size_inside(path: Path, location: str) -> int:
    """The size of a file of external data. One that is not below the model's folder, or not there, is refused.

    A link counts as what it leads to, save that model and weights may both be links to files side by side,
    as in the cache of the Hugging Face hub.
    """
    written = PurePosixPath(location)
    target = (path.parent / location.replace("\0", "?")).resolve()  # no file's name has a zero byte
    homes = {path.parent.resolve(), path.resolve().parent}
    lexically = location != "" and not written.is_absolute() and ".." not in written.parts
    if not lexically or not any(target.is_relative_to(home) for home in homes):
        raise InvalidModel(
            f"{path} keeps weights in {location!r}, which is outside the model's folder. "
            "Only files below it are read: move the weights there and mend the model's reference"
        )
    if not target.is_file():
        raise InvalidModel(f"{path} keeps weights in {location!r}, and there is no such file beside it")
    return target.stat().st_size


def _check_extent(name: str, tensor: onnx.TensorProto, sizes: Mapping[str, int]) -> None:
    """Refuse a tensor that is not all there in its file."""
    about = {entry.key: entry.value for entry in tensor.external_data}
    location, begin, length = about["location"], about.get("offset", "0"), about.get("length", "0")
    if not (begin.isdecimal() and length.isdecimal()):
        raise InvalidModel(f"{name} keeps {tensor.name!r} in {location!r} at {begin!r}, {length!r} bytes of it")
    try:
        needed = math.prod(tensor.dims) * ir.DataType(tensor.data_type).bitwidth // 8
    except (TypeError, ValueError):  # strings, or no type at all: whoever reads the graph says so
        needed = 0
    end = int(begin) + max(int(length), needed)
    if end > sizes[location]:
        raise InvalidModel(
            f"{name} keeps {tensor.name!r} in {location!r} up to byte {end}, and that file ends at {sizes[location]}: "
            "it was cut short, or is another model's"
        )
