"""What ONNX Runtime's CPU provider computes wrongly of great numbers and NaN: rows of the table in ``faults``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from isorun_backends.nodes import Nodes, attribute_of, dtype_of, input_of, is_small, kind_of, settled, static
from isorun_backends.onnxruntime.row import fault, fault_before_1_32

if TYPE_CHECKING:
    import onnx_ir as ir

_GREATEST = 2**31 - 1
_HELD = 2**52  # fp64 holds every integer below, and the difference of two
_OUTSIDE = 100  # of an image from -1 to 1, whatever its size


def may_be_of_large_integers(node: ir.Node, _: int) -> bool:
    """Whether integers may be where fp64 does not hold them: the start or the limit is neither small nor a size."""
    if not any(kind_of(value) == "INT64" for value in node.inputs):
        return False
    limit, step = static(node.inputs[1]), settled(node.inputs[2])
    if not is_small(node.inputs[0], _HELD):
        return True
    # Of fewer elements than fp64 holds, with a small step
    return step is None or abs(step.item()) >= 2**10 or (limit is not None and abs(limit[0]) >= _HELD)


def count_up(op: Nodes, node: ir.Node) -> ir.Value:
    """The start, and as many steps as there are, in integers alone. A step of 0 is an error, as before."""
    start, limit, step = node.inputs
    zero, one = op.constant(0), op.constant(1)
    distance, width, direction = op("Sub", limit, start), op("Abs", step), op("Sign", step)
    divisor = op("Where", op("Less", width, one), one, width)
    count = op("Add", op("Div", op("Sub", op("Abs", distance), one), divisor), one)
    towards = op("Less", zero, op("Mul", op("Sign", distance), direction))
    steps = op("Range", zero, op("Where", towards, count, zero), op("Abs", direction))
    return op("Add", start, op("Mul", steps, step))


def may_slice_down_to_greatest(node: ir.Node, _: int) -> bool:
    """Whether a slice may have negative steps, and ends at the greatest integer of a type."""
    steps, ends = settled(input_of(node, 4)), settled(input_of(node, 2))
    if input_of(node, 4) is None or (steps is not None and (steps > 0).all()):
        return False
    return ends is None or bool(np.isin(ends, (_GREATEST, np.iinfo(np.int64).max)).any())


def slice_to_smaller(op: Nodes, node: ir.Node) -> Sequence[ir.Value]:
    """The slice to smaller ends, which are beyond the last element too."""
    x, starts, ends, *rest = node.inputs
    last = op.constant(_GREATEST - 1, dtype_of(ends))
    return op.like(node, x, starts, op("Where", op("Less", last, ends), last, ends), *rest)


def sample_near(op: Nodes, node: ir.Node) -> ir.Value:
    """Samples of places that are outside by no more than a hundred images."""
    x, grid = node.inputs
    low, high = (op.constant(number, dtype_of(grid, np.float32)) for number in (-_OUTSIDE, _OUTSIDE))
    return op("GridSample", x, op("Clip", grid, low, high), **node.attributes)


ROWS = (
    fault_before_1_32(
        "Range | integers from 2^53 on | more or fewer elements: it counts them in fp64",
        "g (int64 x, int64 l, int64 d) => (int64[n] y) { y = Range (x, l, d) }",
        applies=may_be_of_large_integers,
        rewrite=count_up,
        feeds={"x": 2**60, "l": 2**60 + 3, "d": 2},
    ),
    fault(
        "Slice | a step that may be negative, to the greatest integer of 32 or 64 bits | down to the first element",
        "g (float[a] x, int64[1] e) => (float[b] y) <int64[1] s = {2}, int64[1] k = {0}, int64[1] p = {-1}> "
        "{ y = Slice (x, s, e, k, p) }",
        applies=may_slice_down_to_greatest,
        rewrite=slice_to_smaller,
        feeds={"x": np.arange(4), "e": [_GREATEST]},
    ),
    fault(
        "GridSample | places far outside, with zeros or the border there | "
        "elements of the image, or 0 instead of the border",
        "g (float[1, 1, h, w] x, float[1, i, j, 2] p) => (float[1, 1, k, l] y) { y = GridSample (x, p) }",
        applies=lambda node, _: attribute_of(node, "padding_mode", "zeros") in ("zeros", "border"),
        rewrite=sample_near,
        feeds={"x": np.arange(1, 10).reshape(1, 1, 3, 3), "p": np.full((1, 1, 1, 2), 1e20)},
    ),
    fault(
        "ReduceMax | NaN and other numbers, in ReduceMin, ArgMax, ArgMin and Hardmax too | "
        "a number, unless the first of a row is NaN",
        "g (float[a, b] x) => (float[a, 1] y) <int64[1] i = {1}> { y = ReduceMax (x, i) }",
        opset=18,
        feeds={"x": [[1, np.nan]]},
    ),
    fault_before_1_32(
        "TopK | NaN and other numbers | a number where NaN is the greatest",
        "g (float[a, b] x) => (float[a, 1] y) <int64[1] k = {1}> { y, i = TopK (x, k) }",
        feeds={"x": [[1, np.nan]]},
    ),
    fault(
        "ScatterElements | `reduction` = min or max, of NaN and other numbers | "
        "the number after NaN, as if it were the first",
        'g (float[a] x, int64[b] i, float[b] u) => (float[c] y) { y = ScatterElements <reduction = "min"> (x, i, u) }',
        opset=18,
        feeds={"x": [0.5], "i": [0, 0], "u": [np.nan, 2]},
        expected=[[np.nan]],
    ),
)
