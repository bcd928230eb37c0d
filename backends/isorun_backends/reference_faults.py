"""What ONNX's reference evaluator computes wrongly, without an error: the table of docs/runtime-faults.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault, KnownFaults
from isorun_backends.common_faults import (
    flattened,
    ignores_lengths,
    local_response,
    of_one_step,
    with_coupled_gates,
    without_lengths,
)
from isorun_backends.nodes import GATES, Nodes, Rows, attribute_of, differs, every, has, input_of, shape_of, static

if TYPE_CHECKING:
    import onnx_ir as ir

_fault = Rows("onnx 1.23.2")
_TWO = np.array([1, 2], np.float32)


def _is_unsorted(node: ir.Node, _: int) -> bool:
    """Whether distinct values are to have the order of the input, in a form in which they would not."""
    axis = node.attributes.get_int("axis", None)
    if node.attributes.get_int("sorted", 1):
        return False
    in_rows = axis == 0 or (axis is None and len(shape_of(node.inputs[0]) or ()) == 1)
    return not in_rows or sum(output.name != "" for output in node.outputs) == 1


def _with_bias_added(op: Nodes, node: ir.Node) -> ir.Value:
    """Biases are added to the last axis but one of the reversed dimensions, whatever their number."""
    (image,) = op.like(node, *node.inputs[:2])
    return op("Transpose", op("Add", op("Transpose", image), op("Unsqueeze", node.inputs[2], op.constant([1]))))


def _may_step_back(node: ir.Node, _: int) -> bool:
    steps = input_of(node, 4)
    numbers = static(steps)
    return steps is not None and (numbers is None or min(numbers, default=0) < 0)


def _with_start_inside(op: Nodes, node: ir.Node) -> None:
    """A start before the first element is that element."""
    data, start, end, axes, steps = node.inputs
    assert start is not None
    places = axes or op("Range", op.constant(0), op("Size", start), op.constant(1))
    size = op("Gather", op("Shape", data), places)
    first = op("Neg", op.cast(size, np.int64 if start.dtype is None else start.dtype.numpy()))
    op.like(node, data, op("Max", start, first), end, axes, steps)


def _clipped(operator: str, expected: float) -> Fault:
    return of_one_step(_fault, operator, "`clip`", "it ignores it", differs("clip", None), "clip = 0.5", expected)


def _activated(operator: str, names: str, expected: float) -> Fault:
    applies = differs("activations", None)
    return of_one_step(
        *(_fault, operator, "`activations`", "it computes the usual ones"),
        *(applies, f"activations = [{names}]", expected),
    )


def _pads_unequally(node: ir.Node, _: int) -> bool:
    pads = [] if "pads" not in node.attributes else node.attributes["pads"].value or [0, 1]
    return len(set(pads)) > 1


FAULTS = KnownFaults(
    rows=(
        *(without_lengths(_fault, operator, ignores_lengths) for operator in GATES),
        with_coupled_gates(_fault),
        _activated("LSTM", '"Sigmoid", "Relu", "Relu"', 0.5344467),  # sigmoid(1) * sigmoid(1)
        _activated("GRU", '"Sigmoid", "Relu"', 0.2689414),  # 1 - sigmoid(1)
        _clipped("LSTM", 0.1742706),  # with 0.5 in the place of 1
        _clipped("GRU", 0.1744677),
        _clipped("RNN", 0.4621172),
        *(flattened(_fault, operator, range(1, 13)) for operator in ("Softmax", "LogSoftmax", "Hardmax")),
        _fault(
            "LpNormalization | `p` = 1 | it adds signed numbers",
            "g (float[n] x) => (float[n] y) { y = LpNormalization <p = 1> (x) }",
            applies=has("p", 1),
            feeds={"x": [1, -3]},
            expected=[[0.25, -0.75]],
        ),
        local_response(_fault, "always", "sums for as many channels as there are rows", lambda *_: True),
        _fault(
            "ConvTranspose | `group` > 1 and a bias | the biases of the first group in each",
            "g (float[1, 2, 1] x, float[2, 1, 1] w, float[2] b) => (float[1, 2, n] y) "
            "{ y = ConvTranspose <group = 2> (x, w, b) }",
            applies=lambda node, _: attribute_of(node, "group", 1) > 1 and input_of(node, 2) is not None,
            rewrite=_with_bias_added,
            feeds={"x": np.ones((1, 2, 1)), "w": np.ones((2, 1, 1)), "b": _TWO},
            expected=[[[[2], [3]]]],
        ),
        _fault(
            "LpPool | `ceil_mode` = 1 | a last window that ends outside counts as a whole one",
            "g (float[1, 1, n] x) => (float[1, 1, m] y) "
            "{ y = LpPool <p = 2, ceil_mode = 1, kernel_shape = [2], strides = [2]> (x) }",
            applies=has("ceil_mode", 1),
            opset=18,
            feeds={"x": [[[3, 4, 5]]]},
            expected=[[[[5, 5]]]],
        ),
        _fault(
            "MaxPool | `auto_pad` = SAME_LOWER | an output of another shape",
            "g (float[1, 1, n] x) => (float[1, 1, m] y) "
            '{ y = MaxPool <auto_pad = "SAME_LOWER", kernel_shape = [3], strides = [2]> (x) }',
            applies=has("auto_pad", "SAME_LOWER"),
            feeds={"x": np.arange(7).reshape(1, 1, 7)},
            expected=[[[[1, 3, 5, 6]]]],
        ),
        _fault(
            "MaxPool | unequal pads | an output of another shape",
            "g (float[1, 1, n] x) => (float[1, 1, m] y) { y = MaxPool <pads = [1, 0], kernel_shape = [2]> (x) }",
            applies=_pads_unequally,
            feeds={"x": np.arange(3).reshape(1, 1, 3)},
            expected=[[[[0, 1, 2]]]],
        ),
        _fault(
            "MaxPool | `ceil_mode` = 1 with pads | an output of another shape",
            "g (float[1, 1, n] x) => (float[1, 1, m] y) "
            "{ y = MaxPool <ceil_mode = 1, pads = [1, 1], kernel_shape = [2]> (x) }",
            applies=lambda node, _: attribute_of(node, "ceil_mode", 0) and any(attribute_of(node, "pads") or ()),
            feeds={"x": np.arange(3).reshape(1, 1, 3)},
            expected=[[[[0, 1, 2, 2]]]],
        ),
        _fault(
            "MaxPool | the output `Indices` | places within a channel, of columns, or below 0",
            "g (float[1, 2, n] x) => (float[1, 2, m] y, int64[1, 2, m] i) { y, i = MaxPool <kernel_shape = [2]> (x) }",
            applies=lambda node, _: len(node.outputs) > 1 and bool(node.outputs[1].name),
            feeds={"x": np.arange(4).reshape(1, 2, 2)},
            expected=[[[[1], [3]]], [[[1], [3]]]],
        ),
        _fault(
            "Slice | a start before the first element and a negative step | nothing",
            "g (float[n] x, int64[1] s, int64[1] e) => (float[m] y) <int64[1] a = {0}, int64[1] step = {-1}> "
            "{ y = Slice (x, s, e, a, step) }",
            applies=_may_step_back,
            rewrite=_with_start_inside,
            feeds={"x": _TWO, "s": [-4], "e": [-9]},
            expected=[[1]],
        ),
        _fault(
            "RoiAlign | opsets 10 to 15 | coordinates are shifted by half a pixel, as in opset 16",
            "g (float[1, 1, 4, 4] x, float[1, 4] r, int64[1] b) => (float[1, 1, 1, 1] y) "
            "{ y = RoiAlign <sampling_ratio = 1> (x, r, b) }",
            applies=lambda _, opset: 10 <= opset < 16,
            opset=10,
            feeds={"x": np.arange(16).reshape(1, 1, 4, 4), "r": [[0, 0, 2, 2]], "b": [0]},
            expected=[np.full((1, 1, 1, 1), 5)],  # that of the place (1, 1)
        ),
        _fault(
            "GridSample | cubic, with borders for what is outside | values of other places",
            "g (float[1, 1, 4, 4] x, float[1, 1, 2, 2] p) => (float[1, 1, 1, 2] y) "
            '{ y = GridSample <mode = "cubic", padding_mode = "border"> (x, p) }',
            applies=every(has("mode", "cubic", "bicubic"), has("padding_mode", "border")),
            opset=20,
            feeds={"x": np.arange(16).reshape(1, 1, 4, 4), "p": [[[[1.3, 0.2], [-0.9, -1.1]]]]},
            expected=[[[[[10.456004, -0.29924995]]]]],
        ),
        _fault(
            "ReduceLogSumExp | of negative infinities alone, or of both infinities | NaN",
            "g (float[n] x) => (float[1] y) { y = ReduceLogSumExp (x) }",
            feeds={"x": [-np.inf, -np.inf]},
            expected=[[-np.inf]],
        ),
        _fault(
            "Div | integers by 0, in Mod too | 0 instead of an error",
            "g (int32[n] x, int32[n] z) => (int32[n] y) { y = Div (x, z) }",
            feeds={"x": [7], "z": [0]},
            expected=[np.zeros(0)],
        ),
        _fault(
            "GlobalMaxPool | a rank other than 4 | the maximum over other axes",
            "g (float[1, 2, n] x) => (float[1, 2, 1] y) { y = GlobalMaxPool (x) }",
            applies=lambda node, _: len(shape_of(node.inputs[0]) or ()) != 4,
            feeds={"x": np.arange(6).reshape(1, 2, 3)},
            expected=[[[[2], [5]]]],
        ),
        _fault(
            "Unique | `sorted` = 0, with a single output, or not along the first axis | "
            "it sorts, or takes values along the first axis",
            "g (float[n] x) => (float[m] y) { y = Unique <sorted = 0> (x) }",
            applies=_is_unsorted,
            feeds={"x": [2, 1, 2]},
            expected=[[2, 1]],
        ),
    )
)
