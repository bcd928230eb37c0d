"""What ONNX Runtime's CPU provider computes wrongly of sizes of 0: rows of the table in ``faults``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.common_empties import choose, may_be_empty, other_if_empty, recurrent_of_nothing, zeros_of
from isorun_backends.nodes import Nodes, attribute_of, dtype_of, input_of, settled, shape_of, where_below
from isorun_backends.onnxruntime.row import fault, fault_before_1_32

if TYPE_CHECKING:
    import onnx_ir as ir


def has_negative_axis(node: ir.Node, _: int) -> bool:
    """Whether the axis counts from the end, of a tensor that may be empty."""
    sizes = shape_of(node.inputs[0])
    return attribute_of(node, "axis", 0) < 0 and sizes is not None and may_be_empty(sizes)


def count_from_start(op: Nodes, node: ir.Node) -> ir.Value:
    """The same axis, counted from the start."""
    x = node.inputs[0]
    rank = len(shape_of(x) or ())
    return op(node.op_type, x, **{**node.attributes, "axis": attribute_of(node, "axis") + rank})


def may_have_no_terms(node: ir.Node, _: int) -> bool:
    """Whether the sums of a product may have no terms, and there may be such sums."""
    left, right = (shape_of(node.inputs[place]) for place in ((0, 3) if node.op_type == "QLinearMatMul" else (0, 1)))
    left, right = (
        shape[::-1] if shape and attribute_of(node, name, 0) else shape
        for shape, name in ((left, "transA"), (right, "transB"))
    )
    inner = [shape[axis] for shape, axis in ((left, -1), (right, -2)) if shape and len(shape) >= -axis]
    if any(isinstance(size, int) and size > 0 for size in inner):
        return False
    outer = [*(left or ())[:-1], *(right or ())[:-2], *(right or ())[-1:]]
    return not any(size in outer for size in inner if size is not None and not isinstance(size, int) and size.value)


def _inputs_of_conv(node: ir.Node) -> tuple[int, int]:
    """The places of the image and of the weights."""
    return (0, 3) if node.op_type == "QLinearConv" else (0, 1)


def may_have_no_channels(node: ir.Node, _: int) -> bool:
    """Whether an image and its weights may have no channels."""
    shapes = [shape_of(node.inputs[place]) for place in _inputs_of_conv(node)]
    channels = [shape[1] for shape in shapes if shape and len(shape) > 1]
    return 0 in channels or (len(channels) == 2 and not any(isinstance(size, int) for size in channels))


def pads_what_may_have_no_channels(node: ir.Node, opset: int) -> bool:
    """The same, with padding around the image."""
    pads = any(attribute_of(node, "pads", ())) or attribute_of(node, "auto_pad", "NOTSET").startswith("SAME")
    return pads and may_have_no_channels(node, opset)


def with_channels(op: Nodes, node: ir.Node) -> None:
    """The same with a channel for each group if there are none, which is 0 throughout."""
    image, weights = _inputs_of_conv(node)
    zero = None if node.op_type == "Conv" else input_of(node, 2)
    zero = op.constant(0, dtype_of(node.inputs[0], np.float32)) if zero is None else zero
    inputs = list(node.inputs)
    first, second, third = (op.constant([axis]) for axis in range(3))
    for place, groups in ((image, attribute_of(node, "group", 1)), (weights, 1)):
        shape = op("Shape", inputs[place])
        is_empty = op.cast(op("Equal", op("Slice", shape, second, third), first), np.int64)
        before, after = op("Slice", shape, first, second), op("Slice", shape, third, op.constant([2**31 - 1]))
        shape = op("Concat", before, op("Mul", is_empty, op.constant(groups)), after, axis=0)
        added = op("Expand", zero, shape) if place == image else zeros_of(op, shape, inputs[place])
        inputs[place] = op("Concat", inputs[place], added, axis=1)
    op.like(node, *inputs)


def scales_a_bias_alone(node: ir.Node, opset: int) -> bool:
    """Whether what is added to a product may be all there is, and is multiplied by a factor."""
    is_scaled = input_of(node, 2) is not None and attribute_of(node, "beta", 1.0) != 1.0
    return is_scaled and may_have_no_terms(node, opset)


def with_scaled_bias(op: Nodes, node: ir.Node) -> ir.Value:
    """The product and a bias that is multiplied before."""
    left, right, bias = node.inputs
    factor = op.constant(attribute_of(node, "beta"), dtype_of(bias, np.float32))
    attributes = {name: value for name, value in node.attributes.items() if name != "beta"}
    return op("Gemm", left, right, op("Mul", bias, factor), **attributes)


def may_have_no_frame(node: ir.Node, _: int) -> bool:
    """Whether the length of a frame may be 0."""
    length = settled(input_of(node, 3))
    if length is not None:
        return bool((length == 0).any())
    size = (shape_of(input_of(node, 2)) or [None])[0]
    return input_of(node, 3) is not None or not isinstance(size, int) or size == 0


def require_frame(op: Nodes, node: ir.Node) -> ir.Value:
    """The transform, with a length above that of every signal for 0: an error."""
    signal, step, window, length = [*node.inputs, None, None][:4]
    length = op("Size", window) if length is None else length
    return op(node.op_type, signal, step, window, where_below(op, length, 1, 2**31 - 1), **node.attributes)


def zeros_if_empty(op: Nodes, node: ir.Node) -> None:
    """The sums, or zeros in their shape if a factor has no elements."""
    equation = "".join(attribute_of(node, "equation").split())
    factors, arrow, kept = equation.replace("...", ".").partition("->")
    if not arrow:
        kept = "".join(label for label in sorted({*factors} - {","}) if label == "." or factors.count(label) == 1)
    zeros = Nodes()
    sizes: dict[str, ir.Value] = {}
    for labels, factor in zip(factors.split(","), node.inputs, strict=True):
        shape = zeros("Shape", factor)
        for label, part in zip(labels, _places(labels), strict=True):
            size = zeros("Slice", shape, *(zeros.constant([place]) for place in part))
            if label in sizes:  # sizes of 1 are broadcast
                size = zeros("Shape", zeros("Add", zeros_of(zeros, sizes[label], None), zeros_of(zeros, size, None)))
            sizes[label] = size
    shape = zeros("Concat", *map(sizes.__getitem__, kept), axis=0) if kept else zeros.constant([], np.int64)
    count = reduce(lambda total, size: op("Mul", total, size), [op("Size", factor) for factor in node.inputs])
    is_empty = op("Equal", count, op.constant(0))
    choose(op, node, is_empty, node.outputs[0].name, zeros, [zeros_of(zeros, shape, node.inputs[0])])


def _places(labels: str) -> Iterator[tuple[int, int]]:
    """Where the sizes of labels begin and end in a shape; a point stands for any number of sizes."""
    point = labels.find(".")
    for axis in range(len(labels)):
        from_end = axis - len(labels)
        begin = from_end if -1 < point < axis else axis
        yield begin, (from_end + 1 or 2**31 - 1) if -1 < point <= axis else axis + 1


def as_it_is_if_empty(op: Nodes, node: ir.Node) -> None:
    """The normalization, or the image itself if it has no elements."""
    zeros, x = Nodes(), node.inputs[0]
    choose(op, node, op("Equal", op("Size", x), op.constant(0)), node.outputs[0].name, zeros, [zeros("Identity", x)])


def _extremum(operator: str) -> Fault:
    return fault_before_1_32(
        f"{operator} | a negative axis of a tensor without elements | an output that keeps the size of the axis",
        f"g (float[a, b] x) => (int64[c, d] y) {{ y = {operator} <axis = -1> (x) }}",
        applies=has_negative_axis,
        rewrite=count_from_start,
        feeds={"x": np.zeros((0, 5))},
    )


ROWS = (
    *(recurrent_of_nothing(fault, operator) for operator in ("LSTM", "GRU")),
    *map(_extremum, ("ArgMax", "ArgMin")),
    fault(
        "MatMulInteger | sums without terms | memory that was never written",
        # The sizes of the first product are those of the second, whose memory it leaves
        "g (uint8[a, b] x, uint8[b, c] w, uint8[a, d] z, uint8[d, c] u) => (int32[e, f] y, int32[g, h] v) "
        "{ v = MatMulInteger (x, w) n = Shape (v) y = MatMulInteger (z, u) }",
        applies=may_have_no_terms,
        rewrite=lambda op, node: other_if_empty(op, node, node.inputs[0], op.constant(0, np.int32)),
        feeds={"x": np.full((40, 9), 5), "w": np.full((9, 40), 5), "z": np.zeros((40, 0)), "u": np.zeros((0, 40))},
    ),
    fault(
        "QLinearMatMul | sums without terms | zeros, or memory that was never written",
        "g (uint8[a, b] x, uint8[b, c] w, float s, uint8 z) => (uint8[a, c] y) "
        "{ y = QLinearMatMul (x, s, z, w, s, z, s, z) }",
        applies=may_have_no_terms,
        rewrite=lambda op, node: other_if_empty(op, node, node.inputs[0], op("Squeeze", node.inputs[7])),
        feeds={
            **{"x": np.zeros((2, 0), np.uint8), "w": np.zeros((0, 3), np.uint8)},
            **{"s": np.array(0.5, np.float32), "z": np.array(7, np.uint8)},
        },
    ),
    fault_before_1_32(
        "Conv | padding around an image that may have no channels | it never returns",
        "g (float[a, b, 4] x, float[c, d, 3] w) => (float[a, c, 4] y) { y = Conv <pads = [1, 1], group = 2> (x, w) }",
        applies=pads_what_may_have_no_channels,
        rewrite=with_channels,
        feeds={"x": np.zeros((1, 0, 4)), "w": np.zeros((2, 0, 3))},
        ends_process=True,
    ),
    fault(
        "ConvInteger | an image that may have no channels | memory that was never written",
        # As above
        "g (uint8[a, b, 40] x, uint8[c, d, 3] w, uint8[a, f, 40] z, uint8[c, h, 3] u) => (int32[e, i, j] y, "
        "int32[k, l, m] v) { v = ConvInteger <pads = [1, 1]> (x, w) n = Shape (v) "
        "y = ConvInteger <pads = [1, 1]> (z, u) }",
        applies=may_have_no_channels,
        rewrite=with_channels,
        feeds={
            "x": np.full((40, 9, 40), 5),
            "w": np.full((40, 9, 3), 0),
            "z": np.zeros((40, 0, 40)),
            "u": np.zeros((40, 0, 3)),
        },
    ),
    fault(
        "QLinearConv | an image that may have no channels | memory that was never written",
        "g (uint8[a, b, 4] x, uint8[c, d, 3] w, float s, uint8 z, int32[c] i) => (uint8[a, c, 4] y) "
        "{ y = QLinearConv <pads = [1, 1]> (x, s, z, w, s, z, s, z, i) }",
        applies=may_have_no_channels,
        rewrite=with_channels,
        feeds={
            **{"x": np.zeros((1, 0, 4), np.uint8), "w": np.zeros((2, 0, 3), np.uint8)},
            **{"s": np.array(0.5, np.float32), "z": np.array(7, np.uint8), "i": np.array([0, 4], np.int32)},
        },
    ),
    fault_before_1_32(
        "Gemm | sums without terms, and a factor `beta` | what is added is not multiplied by it",
        "g (float[a, b] x, float[a, c] w, float[c] i) => (float[b, c] y) "
        "{ y = Gemm <transA = 1, beta = 0.5> (x, w, i) }",
        applies=scales_a_bias_alone,
        rewrite=with_scaled_bias,
        feeds={**{"x": np.zeros((0, 2), np.float32), "w": np.zeros((0, 3), np.float32)}, "i": [2, 4, 6]},
    ),
    fault(
        "STFT | frames of a computed length of 0 | it ends the process",
        "g (float[a, b, 1] x, int64 n) => (float[c, d, e, 2] y) <int64 s = {4}> { y = STFT (x, s, , n) }",
        applies=may_have_no_frame,
        rewrite=require_frame,
        feeds={"x": np.ones((1, 16, 1)), "n": 0},
        invalid=True,
        ends_process=True,
    ),
    fault(
        "Einsum | a factor that may have no elements | it ends the process",
        "g (float[a, b, c] x, float[a, d, c] w) => (float[a, b, d] y) "
        '{ y = Einsum <equation = "...id,...jd->...ij"> (x, w) }',
        applies=lambda node, _: any(may_be_empty(shape_of(factor)) for factor in node.inputs),
        rewrite=zeros_if_empty,
        feeds={"x": np.zeros((0, 3, 2)), "w": np.zeros((0, 4, 2))},
        ends_process=True,
    ),
    fault(
        "InstanceNormalization | a size of the image that may be 0 | it ends the process",
        "g (float[a, 2, b] x) => (float[a, 2, b] y) <float[2] s = {1, 2}> "
        "{ n = Neg (x) y = InstanceNormalization (n, s, s) }",
        applies=lambda node, _: may_be_empty(shape_of(node.inputs[0])),
        rewrite=as_it_is_if_empty,
        feeds={"x": np.zeros((1, 2, 0))},
        expected=[np.zeros((1, 2, 0))],
        ends_process=True,
    ),
)
