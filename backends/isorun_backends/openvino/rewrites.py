"""Equivalents of nodes that OpenVINO computes wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from isorun_backends.nodes import Nodes, attribute_of, dtype_of, input_of

if TYPE_CHECKING:
    import onnx_ir as ir


def reduce_l1(op: Nodes, node: ir.Node) -> ir.Value:
    """The sum of absolute values."""
    return _sum(op, node, absolute(op, node.inputs[0]))


def reduce_l2(op: Nodes, node: ir.Node) -> ir.Value:
    """The root of the sum of squares."""
    return op("Sqrt", _sum(op, node, op("Mul", node.inputs[0], node.inputs[0])))


def reduce_log_sum(op: Nodes, node: ir.Node) -> ir.Value:
    """The logarithm of the sum."""
    return op("Log", _sum(op, node, node.inputs[0]))


def reduce_log_sum_exp(op: Nodes, node: ir.Node) -> ir.Value:
    """The maximum is subtracted first. It is clipped to finite numbers, since the difference of infinities is NaN."""
    x = node.inputs[0]
    finite = np.finfo(_float_type(x))
    lowest, highest = op.constant(finite.min), op.constant(finite.max)
    clipped = op("Clip", op("ReduceMax", x, **{**node.attributes, "keepdims": 1}), lowest, highest)
    logarithm = op("Log", _sum(op, node, op("Exp", op("Sub", x, clipped))))
    if not attribute_of(node, "keepdims", 1):
        axes = attribute_of(node, "axes")
        clipped = op("Squeeze", clipped, *([op.constant(axes)] if axes else []))
    return op("Add", logarithm, clipped)


def infinite_extremum(op: Nodes, node: ir.Node) -> ir.Value:
    """The reduction, replaced by the infinity where every element is one; also where there is none."""
    x = node.inputs[0]
    infinity = op.constant(-np.inf if node.op_type == "ReduceMax" else np.inf, _float_type(x))
    (extremum,) = op.like(node, *node.inputs)
    infinite = op.cast(op("Equal", x, infinity), np.int32)
    every = op("ReduceMin", infinite, *node.inputs[1:], **node.attributes)
    return op("Where", op.cast(every, np.bool_), infinity, extremum)


def tile_by_axis(op: Nodes, node: ir.Node) -> None:
    """One axis at a time."""
    value, repeats = node.inputs
    assert repeats is not None
    assert repeats.shape is not None
    rank = repeats.shape[0]
    assert isinstance(rank, int)
    ones = op.constant(np.ones(rank, np.int64))
    for axis in range(rank):
        chosen = op.constant(np.arange(rank) == axis)
        value = op("Tile", value, op("Where", chosen, repeats, ones))


def byte_arithmetic(op: Nodes, node: ir.Node) -> ir.Value:
    """The operation in 32 bits. Of the result, the lower 8 bits are kept."""
    kind = node.inputs[0].dtype  # type: ignore[union-attr]
    assert kind is not None
    offset, size = op.constant(128 if kind.is_signed() else 0, np.int32), op.constant(256, np.int32)
    wide = [op.cast(value, np.int32) for value in node.inputs]
    if node.op_type == "Abs":
        result = absolute(op, wide[0], np.int32)
    elif node.op_type == "Div":
        result = quotient(op, wide[0], wide[1], np.int32)
    else:
        result = op(node.op_type, *wide)
    lower = op("Mod", op("Add", result, offset), size)
    return op("Cast", op("Sub", lower, offset), to=int(kind))


def next_overlap(op: Nodes, node: ir.Node) -> None:
    """The next greater threshold, which is reached by what exceeds the given one.

    A little more than 2^-24 of a number is between 0.5 and 1.5 times its last place, so that the sum is rounded to the
    number's successor. For 0, it is the smallest normal number.
    """
    threshold = input_of(node, 3) or op.constant(0, np.float32)
    part = op.constant(2**-24 * (1 + 2**-23), np.float32)
    successor = op("Add", threshold, op("Mul", threshold, part))
    smallest = op.constant(np.finfo(np.float32).smallest_normal, np.float32)
    inputs = [*node.inputs, None, None][:3]
    op.like(node, *inputs, op("Max", successor, smallest), input_of(node, 4))


def is_not_zero(op: Nodes, node: ir.Node) -> ir.Value:
    """Every number but zero is true, NaN too."""
    zero = op.constant(0, _float_type(node.inputs[0]))
    return op("Not", op("Equal", node.inputs[0], zero))


def fmod(op: Nodes, node: ir.Node) -> ir.Value:
    """The dividend, where only the divisor is infinite."""
    infinity = op.constant(np.inf, _float_type(node.inputs[0]))
    (remainder,) = op.like(node, *node.inputs)
    of_dividend, of_divisor = (op("Equal", absolute(op, value), infinity) for value in node.inputs)
    return op("Where", op("And", op("Not", of_dividend), of_divisor), node.inputs[0], remainder)


def range_towards(op: Nodes, node: ir.Node) -> ir.Value:
    """The same with the start as its limit, where the step leads away from the limit: their signs differ."""
    start, limit, delta = node.inputs
    zero = op("Sub", start, start)
    towards = op("Equal", op("Less", zero, op("Sub", limit, start)), op("Less", zero, delta))
    return op("Range", start, op("Where", towards, limit, start), delta)


def integer_comparison(op: Nodes, node: ir.Node) -> ir.Value:
    """By the sign of the difference, where the nearest numbers in fp32 are equal: it is exact there."""
    x, z = node.inputs
    of_difference = op(node.op_type, op("Sub", x, z), op.constant(0, dtype_of(x)))
    if node.op_type == "Equal":
        return of_difference
    exact = op("And", op("Equal", x, z), of_difference)
    return op("Or", op(node.op_type.removesuffix("OrEqual"), x, z), exact)


def compress_rows(op: Nodes, node: ir.Node) -> ir.Value:
    """The conditions of as many rows as there are, as in ONNX Runtime."""
    x, conditions = node.inputs
    axis = attribute_of(node, "axis")
    count = op("Size", x) if axis is None else op("Gather", op("Shape", x), op.constant(axis))
    kept = op("Slice", conditions, op.constant([0]), op("Reshape", count, op.constant([1])))
    return op("Compress", x, kept, **node.attributes)


def thresholded_relu(op: Nodes, node: ir.Node) -> ir.Value:
    """Where instead of a product with zero, which is NaN for infinities."""
    x, kind = node.inputs[0], _float_type(node.inputs[0])
    alpha = op.constant(attribute_of(node, "alpha", 1.0), kind)
    return op("Where", op("Less", alpha, x), x, op.constant(0, kind))


def slice_from_computed(op: Nodes, node: ir.Node) -> ir.Value:
    """The slice from starts that are computed, too."""
    x, starts, ends, axes, *steps = node.inputs
    return op("Slice", x, op("Where", op("Equal", axes, axes), starts, starts), ends, axes, *steps)


def slope_of_each(op: Nodes, node: ir.Node) -> ir.Value:
    """The operator with a slope for every element."""
    x, slope = node.inputs
    return op("PRelu", x, op("Where", op("Equal", x, x), slope, slope))


def absolute(op: Nodes, value: ir.Value | None, kind: Any = None) -> ir.Value:
    """Absolute values without Abs, which OpenVINO drops where it computes them when it loads the model."""
    return op("Where", _is_negative(op, value, kind), op("Neg", value), value)


def quotient(op: Nodes, x: ir.Value | None, z: ir.Value | None, kind: Any = None) -> ir.Value:
    """The quotient of integers, towards zero: OpenVINO rounds down where it computes it when it loads the model."""
    size = op("Div", absolute(op, x, kind), absolute(op, z, kind))
    turned = op("Xor", _is_negative(op, x, kind), _is_negative(op, z, kind))
    return op("Where", turned, op("Neg", size), size)


def _is_negative(op: Nodes, value: ir.Value | None, kind: Any) -> ir.Value:
    return op("Less", value, op.constant(0, kind or dtype_of(value, np.float32)))


def _sum(op: Nodes, node: ir.Node, value: ir.Value | None) -> ir.Value:
    """ReduceSum over the axes of a reduction: an attribute in opsets 13 to 17, then an input."""
    attributes = {name: item for name, item in node.attributes.items() if name != "axes"}
    axes = [op.constant(attribute_of(node, "axes"))] if "axes" in node.attributes else node.inputs[1:]
    return op("ReduceSum", value, *axes, **attributes)


def _float_type(value: ir.Value | None) -> Any:
    name = None if value is None or value.dtype is None else value.dtype.numpy().name
    return np.dtype(name if name in ("float16", "float64") else "float32")
