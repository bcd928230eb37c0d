"""What the tables of known faults ask of nodes, and make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir


def attribute_of(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of an attribute; the default if it has none, or refers to another one."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.value


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """An input; ``None`` if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def static(value: ir.Value | None) -> list[Any] | None:
    """The elements of a constant; ``None`` if it is not one."""
    import onnx_ir as ir

    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy().reshape(-1).tolist()


def number(value: ir.Value | None) -> float | None:
    """The one element of a constant; ``None`` if it is not one, or has others."""
    import onnx_ir as ir

    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None or tensor.size != 1 else float(tensor.numpy().reshape(-1)[0])


def is_small(value: ir.Value | None, limit: int) -> bool:
    """Whether a value is a constant below a limit, or is computed from such constants and sizes alone."""
    if value is None:
        return False
    known: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current in known:
            continue
        known.add(current)
        node, numbers = current.producer(), static(current)
        if numbers is not None:
            if max(map(abs, numbers), default=0) >= limit:
                return False
        elif node is None or any(attribute.type.name == "GRAPH" for attribute in node.attributes.values()):
            return False
        elif node.op_type not in ("Shape", "Size"):
            waiting += [read for read in node.inputs if read is not None]
    return True


def new_node(op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None) -> ir.Node:
    """A node of one output of ONNX's own operators."""
    import onnx_ir as ir

    return ir.node(op, inputs, attributes)


def constant(value: Any) -> ir.Node:
    """A constant of an array, or of a number in int64."""
    import onnx_ir as ir

    return ir.node("Constant", [], {"value": ir.tensor(np.asarray(value))})


def branch(name: str, nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> ir.Graph:
    """A branch of an ``If``, whose values have names that no other graph has.

    Args:
        name: a prefix of the names, unique in the model.
        nodes: its nodes, in order.
        outputs: its results.
    """
    import onnx_ir as ir

    for number, value in enumerate(value for node in nodes for value in node.outputs):
        value.name = f"{name}.{number}"
    return ir.Graph([], outputs, nodes=nodes, name=name)
