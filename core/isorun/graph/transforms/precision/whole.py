"""Converts what a graph has in 16 bits, fp16 or bf16, to fp32. Its inputs and outputs keep their types.

Runtimes that compute in the graph's types round the result of every node to 16 bits, also those that have no products
of 16 bits and cast before and after each (ONNX Runtime's CPU provider). In fp32, only the weights are rounded.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.graph.analysis.evaluate import HALVES
from isorun.graph.io.nodes import needed, tensors
from isorun.graph.io.shape_inference import infer_shapes
from isorun.graph.matching import subgraph
from isorun.graph.ops import functions

_TYPES = ("to", "dtype", "output_dtype", "output_datatype")  # attributes that name a type
_STANDARD = ("", "ai.onnx.ml", "com.microsoft", functions.DOMAIN)


def has_halves(model: ir.Model) -> bool:
    """Whether a graph has weights or constants in 16 bits that no feed replaces, and no operator that may need them."""
    nodes = [*model.graph.all_nodes()]
    if any(value.is_initializer() and value.dtype in HALVES for value in model.graph.inputs):
        return False
    ends = (value for value in (*model.graph.inputs, *model.graph.outputs) if value.dtype in HALVES)
    if any(not isinstance(value.type, ir.TensorType) for value in ends):
        return False  # nothing casts a sequence
    if any(node.domain not in _STANDARD for node in nodes):
        return False
    if any(node.op_type == "BitCast" for node in nodes):
        return False
    stored = (value.dtype for graph in model.graphs() for value in graph.initializers.values())
    constants = (
        tensor.dtype for node in nodes for attribute in node.attributes.values() for tensor in tensors(attribute)
    )
    return any(dtype in HALVES for dtype in (*stored, *constants))


def convert(model: ir.Model) -> int:
    """Convert a graph to fp32, in place.

    Returns:
        How many values were in 16 bits.
    """
    infer_shapes(model)
    graph, count = model.graph, 0
    inputs = [value for value in graph.inputs if value.dtype in HALVES]
    outputs = [(index, value, value.dtype) for index, value in enumerate(graph.outputs) if value.dtype in HALVES]
    for part in model.graphs():
        count += sum(map(_widen, _values(part, model)))
        for value in part.initializers.values():
            if value.const_value is not None and value.const_value.dtype in HALVES:
                value.const_value = _widened(value.const_value)
        for node in part:
            _widen_attributes(node)
    for value in inputs:
        _cast_input(graph, value)
    for index, value, dtype in outputs:
        _cast_output(graph, index, value, dtype or HALVES[0])
    if any(functions.is_fused(node) for node in graph):
        functions.carry(model)
    common.RemoveUnusedNodesPass()(model)
    return count


def _values(graph: ir.Graph, model: ir.Model) -> Iterable[ir.Value]:
    inputs = () if graph is model.graph else graph.inputs
    yield from (*inputs, *graph.initializers.values())
    for node in graph:
        yield from node.outputs


def _widen(value: ir.Value) -> bool:
    if value.dtype not in HALVES:
        return False
    kind, tensor = needed(value.type), ir.TensorType(ir.DataType.FLOAT)
    is_tensor = isinstance(kind.elem_type, ir.DataType)  # and no sequence of them
    value.type = type(kind)(ir.DataType.FLOAT if is_tensor else tensor)  # type: ignore[call-arg]
    return True


def _widened(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _widen_attributes(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in HALVES:
            node.attributes[name] = ir.AttrTensor(name, _widened(attribute.as_tensor()))
        elif name in _TYPES and attribute.type == ir.AttributeType.INT and attribute.as_int() in HALVES:
            node.attributes[name] = ir.AttrInt64(name, ir.DataType.FLOAT)


def _cast_input(graph: ir.Graph, value: ir.Value) -> None:
    users, op = list(value.uses()), subgraph.Before(graph[0])
    whole = op.cast(value, ir.DataType.FLOAT)
    for node, index in users:
        node.replace_input_with(index, whole)


def _cast_output(graph: ir.Graph, index: int, value: ir.Value, dtype: ir.DataType) -> None:
    half = ir.node("Cast", [value], {"to": dtype})
    output, half.outputs[0].shape = half.outputs[0], value.shape
    output.type = ir.TensorType(dtype)
    if not value.is_graph_input():
        output.name, value.name = value.name, f"{value.name}.fp32"
        graph.append(half)
        graph.outputs[index] = output
