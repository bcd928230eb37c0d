"""Tensors that not every reader reads as they are stored.

Sparse constants and initializers, which onnx_ir and most runtimes lack, are read as dense ones, as ONNX Runtime does.
Of uint32 and uint64 that are not stored as raw data, OpenVINO (2026.4.1) reads every second one in 32 bits, and tract
(0.23.9) fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from isorun.errors import InvalidModel
from isorun.graph.io import nodes, structure

MAX_ELEMENTS = 2**28
"""The maximum number of elements of a sparse tensor, which a file of a few bytes can declare."""

_VALUE = "sparse_value"  # the attribute of Constant


def readable(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A model with dense tensors, and unsigned integers as raw data: the same object if it has them.

    Args:
        proto: the model, whose structure has been checked; it is unchanged.
        name: its name in error messages.

    Raises:
        InvalidModel: a sparse tensor is invalid, or too large.
    """
    graphs = structure.with_subgraphs(proto.graph, *proto.functions)
    is_sparse = any(
        (isinstance(graph, onnx.GraphProto) and graph.sparse_initializer) or any(_constants(graph)) for graph in graphs
    )
    if not is_sparse and not any(map(_is_typed, structure.tensors(proto))):
        return proto
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for graph in structure.with_subgraphs(copy.graph, *copy.functions):
        for attribute in _constants(graph):
            dense = _dense(attribute.sparse_tensor, name)
            attribute.Clear()
            attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
            attribute.t.CopyFrom(dense)
        if isinstance(graph, onnx.GraphProto):
            graph.initializer.extend(_dense(tensor, name) for tensor in graph.sparse_initializer)
            graph.ClearField("sparse_initializer")
    for tensor in filter(_is_typed, structure.tensors(copy)):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    return copy


def _is_typed(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor has unsigned integers that are not stored as raw data."""
    return tensor.data_type in (onnx.TensorProto.UINT32, onnx.TensorProto.UINT64) and bool(tensor.uint64_data)


def _constants(graph: structure.GraphLike) -> Iterator[onnx.AttributeProto]:
    """The sparse values of a graph's constants."""
    for node in graph.node:
        if node.op_type == "Constant" and nodes.domain(node.domain) == "":
            for attribute in node.attribute:
                if attribute.name == _VALUE and attribute.HasField("sparse_tensor"):
                    yield attribute


def _dense(sparse: onnx.SparseTensorProto, model: str) -> onnx.TensorProto:
    shape, name = tuple(sparse.dims), sparse.values.name
    where = f"{model}: sparse tensor {name!r}"
    if any(size < 0 for size in shape) or (elements := math.prod(shape)) > MAX_ELEMENTS:
        raise InvalidModel(f"{where} is {' x '.join(map(str, shape))}; at most {MAX_ELEMENTS:,} elements are supported")
    values = ir.serde.deserialize_tensor(sparse.values)
    numbers = values.numpy()
    indices = ir.serde.deserialize_tensor(sparse.indices).numpy() if len(numbers) else np.zeros(0, np.int64)
    if numbers.ndim != 1 or indices.shape not in ((len(numbers),), (len(numbers), len(shape))):
        raise InvalidModel(
            f"{where} has values of shape {list(numbers.shape)} and indices of shape {list(indices.shape)}; expected "
            f"[N], and [N] or [N, {len(shape)}]"
        )
    limits = np.array([elements] if indices.ndim == 1 else shape)
    if ((indices < 0) | (indices >= limits)).any():
        raise InvalidModel(f"{where} has an index out of the range of its shape {list(shape)}")
    dense = np.zeros(elements, numbers.dtype)
    dense[indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)] = numbers
    return ir.serde.serialize_tensor(ir.Tensor(dense.reshape(shape), dtype=values.dtype, name=name))
