"""What ONNX Runtime's CPU provider computes wrongly of great numbers and NaN: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import attribute_of, constant, is_small, new_node, static

if TYPE_CHECKING:
    import onnx_ir as ir

_VERSIONS = "1.31.1"
_HELD = 2**52  # fp64 holds every integer below, and the difference of two
_OUTSIDE = 100  # of an image from -1 to 1, whatever its size


def may_be_of_large_integers(node: ir.Node, _: int) -> bool:
    """Whether integers may be where fp64 does not hold them: the start or the limit is neither small nor a size."""
    import onnx_ir as ir

    if not any(value is not None and value.dtype == ir.DataType.INT64 for value in node.inputs):
        return False
    limit, step = map(static, node.inputs[1:])
    if not is_small(node.inputs[0], _HELD):
        return True
    # Of fewer elements than fp64 holds, with a small step
    return step is None or abs(step[0]) >= 2**10 or (limit is not None and abs(limit[0]) >= _HELD)


def count_up(node: ir.Node) -> list[ir.Node]:
    """The start, and as many steps as there are, in integers alone. A step of 0 is an error, as before."""
    start, limit, step = node.inputs
    zero, one = constant(0), constant(1)
    distance, width = new_node("Sub", [limit, start]), new_node("Abs", [step])
    way, direction = new_node("Sign", distance.outputs), new_node("Sign", [step])
    length, no_step = new_node("Abs", distance.outputs), new_node("Less", [width.outputs[0], one.outputs[0]])
    divisor = new_node("Where", [no_step.outputs[0], one.outputs[0], width.outputs[0]])
    before = new_node("Sub", [length.outputs[0], one.outputs[0]])
    last = new_node("Div", [before.outputs[0], divisor.outputs[0]])
    count = new_node("Add", [last.outputs[0], one.outputs[0]])
    ahead = new_node("Mul", [way.outputs[0], direction.outputs[0]])
    towards = new_node("Less", [zero.outputs[0], ahead.outputs[0]])
    size = new_node("Where", [towards.outputs[0], count.outputs[0], zero.outputs[0]])
    unit = new_node("Abs", direction.outputs)
    steps = new_node("Range", [zero.outputs[0], size.outputs[0], unit.outputs[0]])
    moved = new_node("Mul", [steps.outputs[0], step])
    nodes = [zero, one, distance, width, way, direction, length, no_step, divisor, before, last, count, ahead, towards]
    return [*nodes, size, unit, steps, moved, new_node("Add", [start, moved.outputs[0]])]


def samples_outside(node: ir.Node, _: int) -> bool:
    """Whether what is outside the image does not depend on how far."""
    return attribute_of(node, "padding_mode", "zeros") in ("zeros", "border")


def sample_near(node: ir.Node) -> list[ir.Node]:
    """Samples of places that are outside by no more than a hundred images."""
    x, grid = node.inputs
    kind = np.float32 if grid is None or grid.dtype is None else grid.dtype.numpy()
    low, high = constant(np.array(-_OUTSIDE, kind)), constant(np.array(_OUTSIDE, kind))
    near = new_node("Clip", [grid, low.outputs[0], high.outputs[0]])
    return [low, high, near, new_node("GridSample", [x, near.outputs[0]], node.attributes)]


ROWS = (
    Fault(
        operator="Range",
        condition="integers from 2^53 on",
        result="more or fewer elements: it counts them in fp64",
        versions=_VERSIONS,
        applies=may_be_of_large_integers,
        rewrite=count_up,
        model="g (int64 x, int64 l, int64 d) => (int64[n] y) { y = Range (x, l, d) }",
        feeds={"x": np.array(2**60), "l": np.array(2**60 + 3), "d": np.array(2)},
        expected=[np.array([2**60, 2**60 + 2])],
    ),
    Fault(
        operator="GridSample",
        condition="places far outside, with zeros or the border there",
        result="elements of the image, or 0 instead of the border",
        versions=_VERSIONS,
        applies=samples_outside,
        rewrite=sample_near,
        model="g (float[1, 1, h, w] x, float[1, i, j, 2] p) => (float[1, 1, k, l] y) { y = GridSample (x, p) }",
        feeds={
            "x": np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3),
            "p": np.full((1, 1, 1, 2), 1e20, np.float32),
        },
        expected=[np.zeros((1, 1, 1, 1), np.float32)],
    ),
    Fault(
        operator="ScatterElements",
        condition="`reduction` = min or max, of NaN and other numbers",
        result="the number after NaN, as if it were the first",
        versions=_VERSIONS,
        model=(
            "g (float[a] x, int64[b] i, float[b] u) => (float[c] y) "
            '{ y = ScatterElements <reduction = "min"> (x, i, u) }'
        ),
        opset=18,
        feeds={
            "x": np.array([0.5], np.float32),
            "i": np.array([0, 0]),
            "u": np.array([np.nan, 2], np.float32),
        },
        expected=[np.array([np.nan], np.float32)],
    ),
)
