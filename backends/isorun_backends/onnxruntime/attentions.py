"""What ONNX Runtime's CPU provider computes wrongly in ``Attention``: rows of the table in ``faults``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from isorun_backends.common_empties import choose, zeros_of
from isorun_backends.nodes import Nodes, attribute_of, dtype_of, input_of, producer, settled, shape_of
from isorun_backends.onnxruntime.row import fault, fault_before_1_32

if TYPE_CHECKING:
    import onnx_ir as ir

_MASK = 3  # among the inputs
_LOWEST = np.finfo(np.float32).min
_STEPS = 16  # from the lowest float to what replaces it: in fp16, beyond the scores, which are rounded as before
# What has no other numbers than its first input.
_MOVING = ("Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")


def may_hold_lowest(node: ir.Node, _: int) -> bool:
    """Whether the mask is of floats, and the lowest may be one of them."""
    mask = input_of(node, _MASK)
    return mask is not None and np.issubdtype(dtype_of(mask), np.floating) and _may_be_lowest(mask)


def _may_be_lowest(value: ir.Value | None) -> bool:
    """Whether the lowest float may be in a value, by the nodes that compute it."""
    if (array := settled(value)) is not None:
        return bool((array == np.finfo(array.dtype).min).any())
    if node := producer(value, *_MOVING):
        return _may_be_lowest(node.inputs[0])
    if node := producer(value, "Where"):
        return any(map(_may_be_lowest, node.inputs[1:]))
    return True


def raise_lowest(op: Nodes, node: ir.Node) -> None:
    """Give a node that is to be replaced a mask with a higher number in the place of the lowest float.

    ONNX Runtime takes scores that are the lowest float for masked by -inf. -inf itself stays.
    """
    mask = node.inputs[_MASK]
    dtype = dtype_of(mask)
    info = np.finfo(dtype)
    lowest, raised = op.constant(info.min, dtype), op.constant(info.min * (1 - _STEPS * info.eps), dtype)
    node.replace_input_with(_MASK, op("Where", op("Equal", mask, lowest), raised, mask))


def with_raised_lowest(op: Nodes, node: ir.Node) -> Sequence[ir.Value]:
    """The attention with a higher number in the place of the lowest float."""
    raise_lowest(op, node)
    return op.like(node, *node.inputs)


def may_have_no_heads(node: ir.Node, _: int) -> bool:
    """Whether a number of heads is an unknown size, and there is one output."""
    if attribute_of(node, "q_num_heads") or sum(bool(output.name) for output in node.outputs) > 1:
        return False
    shapes = [shape_of(value) or [] for value in node.inputs[:2]]
    return any(len(shape) == 4 and not isinstance(shape[1], int) for shape in shapes)


def unless_no_heads(op: Nodes, node: ir.Node) -> Sequence[ir.Value]:
    """The attention, or an empty result."""
    if may_hold_lowest(node, 0):
        raise_lowest(op, node)
    q, k, v = node.inputs[:3]
    one = op.constant([1])
    shape_of_q, shape_of_k = op("Shape", q), op("Shape", k)
    heads = op("Mul", op("Gather", shape_of_q, one), op("Gather", shape_of_k, one))
    is_empty = op("Equal", heads, op.constant([0]))
    zeros = Nodes()
    outer = zeros("Gather", shape_of_q, zeros.constant([0, 1, 2]))
    width = zeros("Gather", zeros("Shape", v), zeros.constant([3]))
    result = zeros_of(zeros, zeros("Concat", outer, width, axis=0), q)
    return choose(op, node, is_empty, node.outputs[0].name, zeros, [result])


ROWS = (
    fault_before_1_32(
        "Attention | a number of heads that is unknown, and 0 | it ends the process",
        "g (float[a, b, c, 4] q) => (float[d, e, f, g] y) { y = Attention (q, q, q) }",
        applies=may_have_no_heads,
        rewrite=unless_no_heads,
        opset=23,
        feeds={"q": np.zeros((1, 0, 3, 4))},
        ends_process=True,
    ),
    fault(
        "Attention | a query whose keys are all masked by the lowest float | zeros instead of the mean of all values",
        "g (float[1, 1, a, 1] q, float[1, 1, b, 1] k, float[a, b] m) => (float[c, d, e, f] y) "
        "{ y = Attention (q, k, k, m) }",
        applies=may_hold_lowest,
        rewrite=with_raised_lowest,
        opset=23,
        feeds={
            "q": np.ones((1, 1, 3, 1)),
            "k": np.array([2, 4]).reshape(1, 1, 2, 1),
            "m": [[_LOWEST, _LOWEST], [-np.inf, _LOWEST], [-np.inf, -np.inf]],
        },
    ),
)
