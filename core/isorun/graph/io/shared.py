"""Models in one folder that share their weights: equal bytes are stored once.

Links between folders would not do: onnx and onnx_ir reject weights with several hard links, ONNX Runtime and OpenVINO
those outside the model's folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from isorun.graph.io import external, files, maps
from isorun.system import json_files
from isorun.system.cache import sha256

_INDEX, _WEIGHTS = ".weights.json", ".weights.bin"


class _Place(NamedTuple):
    """Where the bytes of a tensor are."""

    file: str
    offset: int
    length: int


def write(model: ir.Model, path: Path) -> None:
    """Write a model, and those of its weights that no other model in the folder has. One of them at a time is in
    memory.

    A file of weights has a name by its content, and an index by the SHA-256 of each weight.

    Args:
        model: the model, of which only names inside are changed (:func:`distinguish_names`).
        path: the ONNX file.

    Raises:
        OSError: the folder is not writable, or the disk is full.
        InvalidModel: the model cannot be serialized, or a weight cannot be computed or read.
    """
    folder = path.parent.resolve()
    with files.writing(model, path) as temporary:
        external.load_attributes(model)
        distinguish_names(model)
        moved = [(value, value.const_value) for value in _outside(model, folder)]
        try:
            _move([value for value, _ in moved], folder)
            temporary.write_bytes(files.serialized(model, folder))
        finally:
            for value, tensor in moved:
                value.const_value = tensor
        maps.restore_file(temporary, model)


def distinguish_names(model: ir.Model) -> None:
    """Give values another name that have that of a value in another graph of the model, in place.

    onnx_ir names the values that are added to a graph without regard to the graphs within it, and ONNX Runtime rejects
    a name that an enclosing graph has, too.
    """
    graphs = list(model.graphs())  # the main one first
    if len(graphs) == 1:
        return
    taken: set[str] = set()
    for graph in graphs:
        computed = (output for node in graph for output in node.outputs)
        for value in dict.fromkeys((*graph.inputs, *list(graph.initializers.values()), *computed)):
            name, number = value.name, 1
            while value.name and value.name in taken:
                number += 1
                value.name = f"{name}.{number}"
            taken.add(value.name or "")


def _outside(model: ir.Model, folder: Path) -> Iterator[ir.Value]:
    """The initializers that are large or in other files, except those that are in the folder already."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                if Path(tensor.path).parent != folder:
                    yield value
            elif tensor is not None and tensor.nbytes > files.INLINE_LIMIT and tensor.dtype != ir.DataType.STRING:
                yield value


def _move(values: list[ir.Value], folder: Path) -> None:
    """Replace large tensors by those in a folder, and load small ones, which runtimes fold."""
    tensors = [(value, value.const_value) for value in values if value.const_value is not None]
    large = [(value, tensor) for value, tensor in tensors if tensor.nbytes > files.INLINE_LIMIT]
    digests, stored = _store([tensor for _, tensor in large], folder)
    for (value, tensor), digest in zip(large, digests, strict=True):
        place = stored[digest]
        value.const_value = ir.ExternalTensor(
            str(folder / place.file),
            place.offset,
            place.length,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
        )
    for value, tensor in tensors:
        if tensor.nbytes <= files.INLINE_LIMIT:
            value.const_value = ir.Tensor(np.array(tensor.numpy()), tensor.dtype, name=tensor.name)


def _store(tensors: list[ir.TensorProtocol], folder: Path) -> tuple[list[str], dict[str, _Place]]:
    """Write tensors that no file in a folder has; their digests, and where every digest is."""
    stored = {
        digest: _Place(index.name.removesuffix(_INDEX) + _WEIGHTS, *extent)
        for index in sorted(folder.glob(f"*{_INDEX}"))
        for digest, extent in json_files.read(index).items()
    }
    digests, added = [], {}
    temporary = folder / f".part{_WEIGHTS}"
    try:
        with temporary.open("wb") as file:
            for tensor in tensors:
                content = _content(tensor)
                digests.append(digest := sha256(content))
                if digest not in stored and digest not in added:
                    file.write(bytes(-file.tell() % files.ALIGNMENT))
                    added[digest] = file.tell(), len(content)
                    file.write(content)
        if added:
            name = sha256("".join(added).encode())[:40]
            temporary.replace(folder / f"{name}{_WEIGHTS}")
            (folder / f"{name}{_INDEX}").write_text(json.dumps(added), encoding="utf-8")
            stored |= {digest: _Place(f"{name}{_WEIGHTS}", *extent) for digest, extent in added.items()}
    finally:
        temporary.unlink(missing_ok=True)
    return digests, stored


def _content(tensor: ir.TensorProtocol) -> bytes | memoryview:
    """The bytes of a tensor, without a copy if it is mapped."""
    if tensor.dtype.bitwidth < 8:
        return tensor.tobytes()
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data
