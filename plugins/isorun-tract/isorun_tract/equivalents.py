"""Equivalents of nodes that tract computes wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir


def attribute_of(node: ir.Node, name: str, default: Any) -> Any:
    """The value of an attribute; ``None`` if it refers to another one."""
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value


def without_value(node: ir.Node) -> list[ir.Node]:
    """The padding without a value."""
    import onnx_ir as ir

    return [ir.node("Pad", [*node.inputs[:2], None, *node.inputs[3:]], node.attributes)]


def stable_softplus(node: ir.Node) -> list[ir.Node]:
    """The logarithm of 1 plus the exponential of the negative absolute number, and the number if it is positive."""
    import onnx_ir as ir

    (x,) = node.inputs
    nodes = [_constant(node, ""), ir.node("Abs", [x])]
    for operator in ("Neg", "Exp"):
        nodes.append(ir.node(operator, [nodes[-1].outputs[0]]))
    nodes.append(ir.node("Add", [nodes[0].outputs[0], nodes[-1].outputs[0]]))
    nodes += [ir.node("Log", [nodes[-1].outputs[0]]), ir.node("Relu", [x])]
    return [*nodes, ir.node("Add", [node.outputs[0] for node in nodes[-2:]])]


def above_lowest(node: ir.Node) -> list[ir.Node]:
    """The function of the greater of each number and the lowest one, behind which no quantization is recognized."""
    import onnx_ir as ir

    (x,) = node.inputs
    kind = np.dtype("float32") if x is None or x.dtype is None else x.dtype.numpy()
    lowest = ir.node("Constant", [], {"value": ir.tensor(np.array(np.finfo(kind).min))})
    greater = ir.node("Max", [x, lowest.outputs[0]])
    return [lowest, greater, ir.node(node.op_type, [greater.outputs[0]], node.attributes)]


def _constant(node: ir.Node, name: str) -> ir.Node:
    """A constant of an attribute, or 1 if the node has none, in the type of the node's input."""
    import onnx_ir as ir

    (x,) = node.inputs
    kind = np.dtype("float32") if x is None or x.dtype is None else x.dtype.numpy()
    return ir.node("Constant", [], {"value": ir.tensor(np.array(attribute_of(node, name, 1.0), kind))})


def scaled_swish(node: ir.Node) -> list[ir.Node]:
    """The number times the sigmoid of its multiple."""
    import onnx_ir as ir

    nodes = [_constant(node, "alpha")]
    nodes.append(ir.node("Mul", [node.inputs[0], nodes[-1].outputs[0]]))
    nodes.append(ir.node("Sigmoid", [nodes[-1].outputs[0]]))
    return [*nodes, ir.node("Mul", [node.inputs[0], nodes[-1].outputs[0]])]


def scaled_celu(node: ir.Node) -> list[ir.Node]:
    """The multiple of the ELU of the quotient."""
    import onnx_ir as ir

    alpha = _constant(node, "alpha")
    quotient = ir.node("Div", [node.inputs[0], alpha.outputs[0]])
    elu = ir.node("Elu", [quotient.outputs[0]])
    return [alpha, quotient, elu, ir.node("Mul", [elu.outputs[0], alpha.outputs[0]])]


def same_type(node: ir.Node) -> list[ir.Node]:
    """The power with the exponent in the type of the base."""
    import onnx_ir as ir

    base, exponent = node.inputs
    assert base is not None
    cast = ir.node("Cast", [exponent], {"to": ir.DataType.INT64 if base.dtype is None else base.dtype})
    return [cast, ir.node("Pow", [base, cast.outputs[0]])]
