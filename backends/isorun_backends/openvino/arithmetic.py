"""What OpenVINO computes wrongly by the type or the value of numbers: rows of the table in ``faults``."""

from __future__ import annotations

from typing import Any

import numpy as np

from isorun.plugin import Fault
from isorun_backends.common_faults import shrink_by_selection
from isorun_backends.nodes import differs, every, has, static, where_below
from isorun_backends.openvino import conditions, rewrites
from isorun_backends.openvino.row import fault

_NUMBERS = np.array([np.nan, np.inf, -np.inf, 1, -2], np.float32)


def _noop(operator: str, rewrite: Any, feeds: np.ndarray) -> Fault:
    return fault(
        f"{operator} | `noop_with_empty_axes` = 1 without axes | the input as it is",
        f"g (float[a, b] x) => (float[c, d] y) {{ y = {operator} <noop_with_empty_axes = 1> (x) }}",
        applies=conditions.reduces_nothing,
        rewrite=rewrite,
        opset=18,
        feeds={"x": feeds},
    )


def _byte(operator: str, result: str, x: int, z: int | None = None) -> Fault:
    """A row of an operator of one input or two, by the first elements of their feeds."""
    declared, read = ("int8[n] x", "x") if z is None else ("int8[n] x, int8[n] z", "x, z")
    feeds = {"x": np.array([x, 3], np.int8)} | ({} if z is None else {"z": np.array([z, 1], np.int8)})
    return fault(
        f"{operator} | integers of 8 bits | {result}",
        f"g ({declared}) => (int8[n] y) {{ y = {operator} ({read}) }}",
        applies=lambda node, _: conditions.is_integer(node, 0) and node.inputs[0].dtype.itemsize == 1,
        rewrite=rewrites.byte_arithmetic,
        feeds=feeds,
    )


def _comparison(operator: str, swapped: str) -> Fault:
    return fault(
        f"{operator} | floats, of which one is NaN | true",
        f"g (float[n] x, float[m] z) => (bool[n] y) {{ y = {operator} (x, z) }}",
        applies=conditions.is_float,
        rewrite=lambda op, node: op(swapped, *node.inputs[::-1]),
        feeds={"x": _NUMBERS, "z": [1]},
    )


def _large(operator: str) -> Fault:
    x = np.array([2**24, 100_000_001, -(2**31) + 1], np.int32)
    return fault(
        f"{operator} | integers above 2^24 | it compares their nearest numbers in fp32",
        f"g (int32[n, 1] x, int32[m] z) => (bool[n, m] y) {{ y = {operator} (x, z) }}",
        applies=conditions.compares_large_integers,
        rewrite=rewrites.integer_comparison,
        feeds={"x": x[:, None], "z": np.concatenate([x - 1, x, x + 1])},
    )


ROWS = (
    _noop("ReduceL1", rewrites.reduce_l1, -np.ones((2, 2), np.float32)),
    _noop("ReduceL2", rewrites.reduce_l2, -np.ones((2, 2), np.float32)),
    _noop("ReduceLogSum", rewrites.reduce_log_sum, np.full((2, 2), 2, np.float32)),
    fault(
        "ReduceLogSum | integers | it rounds to the nearest",
        "g (int32[a, b] x) => (int32[c, 1] y) <int64[1] i = {1}> { y = ReduceLogSum (x, i) }",
        applies=conditions.is_integer,
        opset=18,
        feeds={"x": [[6, 6], [1, 1]]},
        expected=[[[2], [0]]],
    ),
    _byte("Neg", "127 of -128", -128),
    _byte("Abs", "127 of -128", -128),
    _byte("Add", "it saturates", 127, 1),
    _byte("Sub", "it saturates", -128, 1),
    _byte("Mul", "it saturates", 100, 7),
    _byte("Div", "it rounds to the nearest", 7, 2),
    fault(
        "Abs | signed numbers that are computed from constants and sizes, or are joined with such numbers | "
        "the numbers as they are",
        "g (float[n] x) => (float[m] y, int64[1] z) <float[2] c = {1, -2}> "
        "{ d = Neg (c) e = Concat <axis = 0> (x, d) y = Abs (e) s = Shape (x) t = Neg (s) z = Abs (t) }",
        applies=conditions.is_absolute_of_fixed,
        rewrite=lambda op, node: rewrites.absolute(op, *node.inputs),
        feeds={"x": [-5, 2]},
    ),
    fault(
        "Div | integers that are computed from constants and sizes, of which one may be negative | it rounds down",
        "g (float[1] x) => (int64[1] y, int32[2] z) <int64[1] f = {4}, int64[1] two = {2}, int32[2] c = {-7, 7}, "
        "int32[2] d = {2, -2}> { s = Shape (x) t = Sub (s, f) y = Div (t, two) z = Div (c, d) }",
        applies=conditions.divides_negative_fixed,
        rewrite=lambda op, node: rewrites.quotient(op, *node.inputs),
        feeds={"x": [1]},
    ),
    *map(_large, ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    fault(
        "Mod | integers above 2^24, or such results; in Div, MatMul, Gemm, Pow, PRelu, ReduceL1, ReduceL2, ReduceMax, "
        "ReduceMean, ReduceMin, ReduceProd, ReduceSum and ReduceSumSquare too | that of their nearest numbers in fp32",
        "g (int32[n] x) => (int32[n] y) <int32 z = {10}> { y = Mod (x, z) }",
        feeds={"x": [100_000_001]},
    ),
    fault(
        "Div | integers by 0, in Mod too | a number instead of an error",
        "g (int32[n] x, int32[n] z) => (int32[n] y) { y = Div (x, z) }",
        feeds={"x": [7], "z": [0]},
        expected=[np.zeros(0)],
    ),
    _comparison("Greater", "Less"),
    _comparison("GreaterOrEqual", "LessOrEqual"),
    fault(
        "Cast | NaN to a boolean | false",
        "g (float[n] x) => (bool[n] y) { y = Cast <to = 9> (x) }",
        applies=every(has("to", 9), conditions.is_known_float),
        rewrite=rewrites.is_not_zero,
        feeds={"x": _NUMBERS},
    ),
    fault(
        "Cast | to fp16 and back | the number itself: it is neither rounded nor infinite above 65,504",
        "g (float[n] x) => (float[n] y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }",
        feeds={"x": [1.9, 1e6]},
    ),
    fault(
        "Cast | to int16, uint16 or uint32 of integers that they do not hold, before another operator | "
        "the integer itself",
        "g (int32[n] x) => (int32[n] y) { q = Cast <to = 4> (x) y = Cast <to = 6> (q) }",
        feeds={"x": [-1, 70_000]},
    ),
    fault(
        "Cast | to fp8 or integers of 4 bits, of numbers that they do not hold, and in QuantizeLinear: it rounds to "
        "fp16 first, and ignores `saturate` = 0 | the neighbour of 1 number in 500; infinity or NaN instead of the "
        "greatest number, or the other way round; integers of 8 bits",
        "g (float[n] x) => (float[n] y) { q = Cast <to = 19> (x) y = Cast <to = 1> (q) }",
        opset=19,
        feeds={"x": [1e5, -2]},
    ),
    fault(
        "Relu | integers | that of their nearest numbers in fp32",
        "g (int32[n] x) => (int32[n] y) { y = Relu (x) }",
        applies=conditions.is_integer,
        rewrite=lambda op, node: where_below(op, node.inputs[0], 0, 0),  # its sign is that of its nearest number
        feeds={"x": [2**24 + 3, 2**31 - 1, -(2**24) - 1]},
    ),
    fault(
        "Mod | `fmod` = 1 by an infinity | NaN",
        "g (float[n] x, float[m] z) => (float[n] y) { y = Mod <fmod = 1> (x, z) }",
        applies=every(differs("fmod", 0), conditions.is_known_float),
        rewrite=rewrites.fmod,
        feeds={"x": _NUMBERS, "z": [np.inf]},
    ),
    fault(
        "Shrink | infinities and NaN | NaN",
        "g (float[n] x) => (float[n] y) { y = Shrink <bias = 0.5> (x) }",
        applies=conditions.is_known_float,
        rewrite=shrink_by_selection,
        feeds={"x": _NUMBERS},
    ),
    fault(
        "Shrink | integers | it ignores the fraction of `bias` and `lambd`",
        "g (int32[n] x) => (int32[n] y) { y = Shrink <bias = 0.5> (x) }",
        applies=conditions.is_integer,
        feeds={"x": [-4, 3]},
    ),
    fault(
        "ThresholdedRelu | negative infinity and NaN | NaN",
        "g (float[n] x) => (float[n] y) { y = ThresholdedRelu <alpha = 0.5> (x) }",
        applies=conditions.is_known_float,
        rewrite=rewrites.thresholded_relu,
        feeds={"x": _NUMBERS},
    ),
    fault(
        "PRelu | a slope of one dimension, and an input of more than two | "
        "the slope along the second axis, or an error",
        "g (float[a, b, 2] x) => (float[c, d, e] y) <float[2] k = {0.5, 3}> { y = PRelu (x, k) }",
        applies=conditions.slopes_by_one_axis,
        rewrite=rewrites.slope_of_each,
        feeds={"x": [[[-1, -2], [-3, 4]]]},
    ),
    fault(
        "Slice | computed axes, where starts, ends and steps are constants | it ends the process",
        "g (float[3] x, int64[1] a) => (float[n] y) <int64[1] s = {1}, int64[1] e = {3}, int64[1] p = {1}> "
        "{ y = Slice (x, s, e, a, p) }",
        applies=conditions.computes_input(3),
        rewrite=rewrites.slice_from_computed,
        feeds={"x": np.arange(3), "a": [0]},
        ends_process=True,
    ),
    fault(
        "Pad | a computed value of another type than float | it reads the value's bytes as a float",
        "g (int32[n] x, int32 v) => (int32[m] y) <int64[2] p = {1, 0}> { y = Pad (x, p, v) }",
        applies=conditions.pads_with_computed_value,
        feeds={"x": [1, 2], "v": 7},
    ),
    fault(
        "Range | a computed step | it ends the process if the step is 0",
        "g (int64 x, int64 l, int64 d) => (int64[n] y) { y = Range (x, l, d) }",
        applies=lambda node, _: static(node.inputs[2]) in (None, [0]),
        feeds={"x": 0, "l": 5, "d": 0},
        ends_process=True,
    ),
    fault(
        "Range | a computed start that leads away from the limit | numbers instead of none",
        "g (int64 x, int64 l) => (int64[n] y) <int64 d = {-1}> { y = Range (x, l, d) }",
        applies=lambda node, _: static(node.inputs[0]) is None and static(node.inputs[2]) not in (None, [0]),
        rewrite=rewrites.range_towards,
        feeds={"x": 0, "l": 5},
    ),
)
