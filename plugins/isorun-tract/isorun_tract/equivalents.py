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


def zero_by_zero(node: ir.Node) -> list[ir.Node]:
    """The result for divisors of 1 in the place of 0, and 0 there."""
    import onnx_ir as ir

    x, divisor = node.inputs
    kind = np.dtype(np.int64) if divisor is None or divisor.dtype is None else divisor.dtype.numpy()
    zero, one = (ir.node("Constant", [], {"value": ir.tensor(np.array(number, kind))}) for number in (0, 1))
    is_zero = ir.node("Equal", [divisor, zero.outputs[0]])
    safe = ir.node("Where", [is_zero.outputs[0], one.outputs[0], divisor])
    result = ir.node(node.op_type, [x, safe.outputs[0]], node.attributes)
    return [zero, one, is_zero, safe, result, ir.node("Where", [i.outputs[0] for i in (is_zero, zero, result)])]


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


def by_maximum(node: ir.Node) -> list[ir.Node]:
    """Whether the greater one of two numbers is the first or the second; for ``Less``, whether it is not the first."""
    import onnx_ir as ir

    left, right = node.inputs
    greater = ir.node("Max", [left, right])
    equal = ir.node("Equal", [greater.outputs[0], right if node.op_type == "LessOrEqual" else left])
    return [greater, equal, *([ir.node("Not", [equal.outputs[0]])] if node.op_type == "Less" else [])]


def rows_from_either_end(node: ir.Node) -> list[ir.Node]:
    """A Gather, which counts from both ends."""
    import onnx_ir as ir

    data, indices = node.inputs
    last = _integers([-1])
    flat = ir.node("Squeeze", [indices, last.outputs[0]])
    return [last, flat, ir.node("Gather", [data, flat.outputs[0]], {"axis": 0})]


def off_outside(node: ir.Node) -> list[ir.Node]:
    """The operator for indices of the range, and the value for "off" at others."""
    import onnx_ir as ir

    index, depth, values = node.inputs
    axis, zero = _integers([attribute_of(node, "axis", -1)]), _integers([0])
    whole = [ir.node("Cast", [value], {"to": ir.DataType.INT64}) for value in (index, depth)]
    integers, count = (cast.outputs[0] for cast in whole)
    negative = ir.node("Neg", [count])
    is_below = ir.node("Less", [integers, negative.outputs[0]])
    reaches = ir.node("Less", [integers, count])
    is_above = ir.node("Not", [reaches.outputs[0]])
    is_outside = ir.node("Or", [is_below.outputs[0], is_above.outputs[0]])
    inside = ir.node("Where", [is_outside.outputs[0], zero.outputs[0], integers])
    right = ir.node("OneHot", [inside.outputs[0], count, values], node.attributes)
    off = ir.node("Gather", [values, zero.outputs[0]])
    everywhere = ir.node("Unsqueeze", [is_outside.outputs[0], axis.outputs[0]])
    nodes = [axis, zero, *whole, negative, is_below, reaches, is_above, is_outside, inside, right, off, everywhere]
    return [*nodes, ir.node("Where", [everywhere.outputs[0], off.outputs[0], right.outputs[0]])]


def _integers(numbers: list[int]) -> ir.Node:
    import onnx_ir as ir

    return ir.node("Constant", [], {"value": ir.tensor(np.array(numbers, np.int64))})
