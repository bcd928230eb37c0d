"""What the rewrites of serialized graphs for one provider share: small steps on ONNX's own messages, in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message


def is_contrib(node: onnx.NodeProto, operator: str) -> bool:
    """Whether a node is that operator of ONNX Runtime's own."""
    return bool(node.domain == "com.microsoft" and node.op_type == operator)


def input_of(node: onnx.NodeProto, index: int) -> str:
    """The name of an input; empty where it is left out."""
    return str(node.input[index]) if len(node.input) > index else ""


def producers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """By value, the node that gives it."""
    return {name: node for node in graph.node for name in node.output}


def source(graph: onnx.GraphProto, value: str) -> str | None:
    """The graph's input that a value is, but for its type; ``None`` where it is computed."""
    makers = producers(graph)
    names = {each.name for each in graph.input}
    while value not in names:
        node = makers.get(value)
        if node is None or node.op_type not in ("Cast", "Identity"):
            return None
        value = node.input[0]
    return value


def counts_from_zero(graph: onnx.GraphProto, value: str, through: Sequence[str]) -> bool:
    """Whether a value is 0, 1, 2 and so on, made by a Range and handed on by operators of the kinds named."""
    import onnx

    makers = producers(graph)
    values = {tensor.name: tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.DEFAULT}

    def number(name: str) -> float | None:
        if name in values:
            array = onnx.numpy_helper.to_array(values[name])
            return float(array.reshape(-1)[0]) if array.size == 1 else None
        return None

    maker = makers.get(value)
    while maker is not None and maker.op_type in through:
        maker = makers.get(maker.input[0])
    return maker is not None and maker.op_type == "Range" and (number(maker.input[0]), number(maker.input[2])) == (0, 1)


def constant(name: str, array: np.ndarray) -> onnx.TensorProto:
    """A constant of a graph."""
    from onnx import numpy_helper

    return numpy_helper.from_array(array, name)


def insert(graph: onnx.GraphProto, after: str, made: Sequence[Message]) -> None:
    """Add constants, and nodes right behind the one that gives a value, or first where it is an input."""
    import onnx

    position = next((index for index, node in enumerate(graph.node) if after in node.output), -1) + 1
    for each in made:
        if isinstance(each, onnx.TensorProto):
            graph.initializer.append(each)
        elif isinstance(each, onnx.NodeProto):
            graph.node.insert(position, each)
            position += 1


def drop_unused(graph: onnx.GraphProto) -> None:
    """Take out nodes and constants that no output follows from."""
    wanted = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if any(name in wanted for name in node.output):
            kept.append(node)
            wanted.update(node.input)
            wanted.update(_captured(node))
    unused = [tensor for tensor in graph.initializer if tensor.name not in wanted]
    for tensor in unused:
        graph.initializer.remove(tensor)
    if len(kept) < len(graph.node):
        nodes = list(reversed(kept))
        del graph.node[:]
        graph.node.extend(nodes)


def _captured(node: onnx.NodeProto) -> set[str]:
    """What the graphs inside a node may read of those around it."""
    inner = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    inner += [graph for attribute in node.attribute for graph in attribute.graphs]
    found = {output.name for graph in inner for output in graph.output}
    for graph in inner:
        for each in graph.node:
            found.update(each.input)
            found.update(_captured(each))
    return found
