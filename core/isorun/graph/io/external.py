"""Weights in files beside a model: which files, and whether they may be read.

A file is accepted where it lies below the model's folder, symbolic links resolved. Where the model is a link itself,
as in the cache of the Hugging Face hub, files below the folder that it leads to are accepted too. Hard links are
accepted: package managers and caches share files by them.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
import onnx_ir as ir
from onnx.external_data_helper import uses_external_data

from isorun.errors import InvalidModel

_LONGEST = 19  # digits of a 64-bit number


def locations(tensors: Iterable[onnx.TensorProto]) -> list[str]:
    """The files that tensors are in, as they name them, in order of first use."""
    found: dict[str, None] = {}
    for tensor in tensors:
        if uses_external_data(tensor):
            found.update((entry.value, None) for entry in tensor.external_data if entry.key == "location")
    return list(found)


def check(tensors: Iterable[onnx.TensorProto], name: str, path: Path | None) -> None:
    """Refuse tensors that are in a file that may not be read, or are not all there.

    Args:
        tensors: all of a model.
        name: what to call the model in an error.
        path: its file; ``None`` where it has none, and so no folder that weights may be in.

    Raises:
        InvalidModel: the message names the tensor and the location.
    """
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if not uses_external_data(tensor):
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if len(entries) != len(tensor.external_data):
            raise InvalidModel(f"{name}: tensor {tensor.name!r} names its external data twice")
        location = entries.get("location", "")
        if path is None:
            raise InvalidModel(
                f"{name} keeps weights in the file {location!r} (tensor {tensor.name!r}): pass the model's path "
                "instead of its contents"
            )
        where = f"{name} keeps weights in {location!r} (tensor {tensor.name!r})"
        if location not in sizes:
            sizes[location] = _size(path, location, where)
        _check_extent(tensor, entries, sizes[location], where)


def anchor(tensors: Iterable[onnx.TensorProto], path: Path) -> None:
    """Replace the locations of checked tensors with absolute paths, links resolved, in place.

    ``onnx_ir`` reads an absolute path as it is; below a base folder it refuses hard links and links to other folders.
    """
    for tensor in tensors:
        if uses_external_data(tensor):
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = str((path.parent / entry.value).resolve())


def relocate(tensors: Iterable[onnx.TensorProto], folder: Path) -> None:
    """Make the absolute locations of tensors relative to a folder again, in place: ONNX Runtime accepts no others."""
    for tensor in tensors:
        if uses_external_data(tensor):
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = PurePosixPath(entry.value).relative_to(folder.resolve()).as_posix()


def check_again(model: ir.Model, files: frozenset[str]) -> None:
    """Refuse a graph whose tensors are in other files than those that were checked when it was read.

    Args:
        model: the graph.
        files: the absolute paths of these files.
    """
    found: list[ir.TensorProtocol | None] = []
    found += [tensor for attributes in _attributes(model) for each in attributes.values() for tensor in _tensors(each)]
    found += [value.const_value for graph in model.graphs() for value in graph.initializers.values()]
    for tensor in found:
        if isinstance(tensor, ir.ExternalTensor) and tensor.path not in files:
            raise InvalidModel(f"Tensor {tensor.name!r} is in {tensor.path!r}, which is outside the model's folder")


def load_attributes(model: ir.Model) -> None:
    """Read the tensors of attributes that are in files into memory, in place.

    ``onnx_ir`` moves the weights of graphs to the file that it writes beside a model, but not those of attributes.
    """
    for attributes in _attributes(model):
        for name, attribute in list(attributes.items()):
            if any(isinstance(tensor, ir.ExternalTensor) for tensor in _tensors(attribute)):
                loaded = [ir.tensor(np.array(tensor.numpy()), name=tensor.name) for tensor in _tensors(attribute)]
                one = attribute.type == ir.AttributeType.TENSOR
                attributes[name] = ir.Attr(name, attribute.type, loaded[0] if one else loaded)


def _attributes(model: ir.Model) -> Iterator[MutableMapping[str, ir.Attr]]:
    for node in model.graph.all_nodes():
        yield node.attributes
    for function in model.functions.values():
        yield function.attributes
        for node in function.all_nodes():
            yield node.attributes


def _tensors(attribute: ir.Attr) -> Sequence[ir.TensorProtocol]:
    if attribute.is_ref() or attribute.value is None:
        return ()
    if attribute.type == ir.AttributeType.TENSOR:
        return (attribute.as_tensor(),)
    return attribute.as_tensors() if attribute.type == ir.AttributeType.TENSORS else ()


def _size(path: Path, location: str, where: str) -> int:
    """The size of a file of external data, in bytes."""
    written = PurePosixPath(location)
    outside = InvalidModel(
        f"{where}, which is outside the model's folder. Only files below it are read: move the weights there and "
        "correct the model's reference"
    )
    if not location or "\0" in location or written.is_absolute() or ".." in written.parts:
        raise outside
    try:
        target = (path.parent / location).resolve()
        if not any(target.is_relative_to(home) for home in {path.parent.resolve(), path.resolve().parent}):
            raise outside
        status = target.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        reason = getattr(error, "strerror", None) or error
        raise InvalidModel(f"{where}, and there is no such file beside it: {reason}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidModel(f"{where}, and there is no such file beside it: it is not a regular file")
    return status.st_size


def _check_extent(tensor: onnx.TensorProto, entries: dict[str, str], size: int, where: str) -> None:
    """Refuse a tensor that is not all there in its file."""
    begin, length = (_number(entries.get(key, "0")) for key in ("offset", "length"))
    if begin is None or length is None:
        given = {key: entries[key] for key in ("offset", "length") if key in entries}
        raise InvalidModel(f"{where} with {given}; expected numbers of bytes, 0 or more")
    try:
        needed = -(-math.prod(tensor.dims) * ir.DataType(tensor.data_type).bitwidth // 8)
    except (TypeError, ValueError) as error:
        raise InvalidModel(f"{where}, whose type cannot be stored in a file: {error}") from error
    end = begin + max(length, needed)
    if end > size:
        raise InvalidModel(
            f"{where} up to byte {end}, and that file ends at {size}: it was cut short, or is another model's"
        )
    if length not in (0, needed):
        raise InvalidModel(f"{where} as {length} bytes, but its shape and type take {needed}")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST else None
