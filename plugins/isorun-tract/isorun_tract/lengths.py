"""Which dimensions of the inputs must not be 0, since tract would end the process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import onnx
from onnx import numpy_helper

_ABORTING = re.compile("Reduce.+|ArgMax|ArgMin|Gather|GatherElements")  # of a length of 0, or wrong, in tract 0.23


def required(model: onnx.ModelProto) -> set[str | None]:
    """The symbolic dimensions that operators reduce or look up in; ``None`` stands for one that is not known.

    Args:
        model: without its external data.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if _ABORTING.fullmatch(node.op_type) and node.input[0] not in constants]
    if not nodes:
        return set()
    graph = onnx.shape_inference.infer_shapes(model).graph
    symbols = {size.dim_param for value in graph.input for size in value.type.tensor_type.shape.dim} - {""}
    values = {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
    names = {name for node in nodes for name in _unfixed(values.get(node.input[0]), _axes(node, constants))}
    return {name if name in symbols else None for name in names}


def _unfixed(value: Any, axes: list[int] | None) -> Iterator[str]:
    """The names of lengths that are not fixed; empty for one without a name."""
    if value is None or not value.type.tensor_type.HasField("shape"):
        yield ""
        return
    sizes = value.type.tensor_type.shape.dim
    for axis in range(-len(sizes), 0) if axes is None else axes:
        if not sizes[axis].dim_value:
            yield sizes[axis].dim_param


def _axes(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> list[int] | None:
    """The axes of a node; ``None`` for all of them, and where they are not known."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    if not node.op_type.startswith("Reduce"):
        return [attributes.get("axis", 0)]
    if len(node.input) > 1 and (tensor := constants.get(node.input[1])) is not None:
        return [int(axis) for axis in numpy_helper.to_array(tensor)] or None
    return attributes.get("axes")
