"""External data: the files that hold a model's weights, and whether they may be read.

A file is accepted if it is below the model's folder with symbolic links resolved. If the model itself is a link, as in
the cache of the Hugging Face hub, files below its target's folder are accepted too. Hard links are accepted: package
managers and caches use them to share files.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable, Iterator, MutableMapping
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
import onnx_ir as ir
from onnx.external_data_helper import uses_external_data

from isorun.errors import InvalidModel
from isorun.graph.io import nodes
from isorun.system import paths

_MAX_DIGITS = 19  # digits of a 64-bit number


def locations(tensors: Iterable[onnx.TensorProto]) -> list[str]:
    """The external files of tensors, as they are named there, in order of first use."""
    return list(dict.fromkeys(entry.value for entry in _locations(tensors)))


def check(tensors: Iterable[onnx.TensorProto], name: str, path: Path | None) -> None:
    """Reject tensors in files that may not be read, and tensors that are incomplete.

    Args:
        tensors: all tensors of a model.
        name: the model's name in error messages.
        path: its file; ``None`` for a model in memory, which may have no external data.

    Raises:
        InvalidModel: the message names the tensor and the location.
    """
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if not uses_external_data(tensor):
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if len(entries) != len(tensor.external_data):
            raise InvalidModel(f"{name}: tensor {tensor.name!r} has a repeated key in its external data")
        location = entries.get("location", "")
        if path is None:
            raise InvalidModel(
                f"{name} keeps weights in the file {location!r} (tensor {tensor.name!r}). Pass the model's path "
                "instead of its contents"
            )
        where = f"{name} keeps weights in {location!r} (tensor {tensor.name!r})"
        if location not in sizes:
            sizes[location] = _size(path, location, where)
        _check_extent(tensor, entries, sizes[location], where)


def anchor(tensors: Iterable[onnx.TensorProto], path: Path) -> None:
    """Replace the locations of checked tensors with resolved absolute paths, in place.

    ``onnx_ir`` reads an absolute path unchecked; below a base folder it rejects hard links and links to other folders.
    """
    for entry in _locations(tensors):
        entry.value = str((path.parent / entry.value).resolve())


def relocate(tensors: Iterable[onnx.TensorProto], folder: Path) -> None:
    """Make the absolute locations of tensors relative to a folder again, in place: ONNX Runtime accepts no others."""
    for entry in _locations(tensors):
        entry.value = PurePosixPath(entry.value).relative_to(folder.resolve()).as_posix()


def check_again(model: ir.Model, files: frozenset[str]) -> None:
    """Reject a graph with tensors in files that were not checked when it was read.

    Args:
        model: the graph.
        files: the absolute paths of the checked files.
    """
    tensors: list[ir.TensorProtocol | None] = []
    for attributes in _attributes(model):
        tensors += [tensor for attribute in attributes.values() for tensor in nodes.tensors(attribute)]
    tensors += [value.const_value for graph in model.graphs() for value in graph.initializers.values()]
    for tensor in tensors:
        if isinstance(tensor, ir.ExternalTensor) and tensor.path not in files:
            raise InvalidModel(
                f"Tensor {tensor.name!r} is in {tensor.path!r}, which is outside the model's folder. "
                "Move the weights below that folder"
            )


def load_attributes(model: ir.Model) -> None:
    """Load the external tensors of attributes into memory, in place.

    ``onnx_ir`` writes initializers to a model's external data file, but not tensors of attributes.
    """
    for attributes in _attributes(model):
        for name, attribute in list(attributes.items()):
            if any(isinstance(tensor, ir.ExternalTensor) for tensor in nodes.tensors(attribute)):
                loaded = [ir.tensor(np.array(tensor.numpy()), name=tensor.name) for tensor in nodes.tensors(attribute)]
                single = attribute.type == ir.AttributeType.TENSOR
                attributes[name] = ir.Attr(name, attribute.type, loaded[0] if single else loaded)


def _locations(tensors: Iterable[onnx.TensorProto]) -> Iterator[onnx.StringStringEntryProto]:
    """The entries of external tensors that name their files."""
    for tensor in tensors:
        if uses_external_data(tensor):
            yield from (entry for entry in tensor.external_data if entry.key == "location")


def _attributes(model: ir.Model) -> Iterator[MutableMapping[str, ir.Attr]]:
    yield from (function.attributes for function in model.functions.values())
    yield from (node.attributes for node in nodes.all_nodes(model))


def _size(path: Path, location: str, where: str) -> int:
    """The size of an external data file, in bytes."""
    outside = InvalidModel(
        f"{where}, which is outside the model's folder or has '..' in it. Move the weights below that folder and "
        "correct the model's reference"
    )
    try:
        target = paths.resolved(path.parent, location, {path.parent.resolve(), path.resolve().parent})
        if target is None:
            raise outside
        status = target.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        reason = getattr(error, "strerror", None) or error
        raise InvalidModel(f"{where}, which cannot be read: {reason}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidModel(f"{where}, which is not a regular file")
    return status.st_size


def _check_extent(tensor: onnx.TensorProto, entries: dict[str, str], size: int, where: str) -> None:
    """Reject a tensor that is incomplete in its file."""
    offset, length = (_number(entries.get(key, "0")) for key in ("offset", "length"))
    if offset is None or length is None:
        extent = {key: entries[key] for key in ("offset", "length") if key in entries}
        raise InvalidModel(f"{where} with {extent}; expected numbers of bytes, 0 or more")
    try:
        needed = -(-math.prod(tensor.dims) * ir.DataType(tensor.data_type).bitwidth // 8)
    except (TypeError, ValueError) as error:
        raise InvalidModel(f"{where}, but its type cannot be stored externally: {error}") from error
    end = offset + max(length, needed)
    if end > size:
        raise InvalidModel(
            f"{where} up to byte {end}, but the file has {size} bytes: it is truncated, or belongs to another model"
        )
    if length not in (0, needed):
        raise InvalidModel(f"{where} as {length} bytes, but its shape and type need {needed}")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
