"""Rows of the tables of known faults that several runtimes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import GATES, Nodes, Rows, array_of, attribute_of, dtype_of, input_of, kind_of, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from isorun_backends.nodes import Condition


def nonzero_of_scalar(fault: Rows, *, refused: bool = False) -> Fault:
    """ONNX's result for a scalar has no rows (a rank of 0); NumPy's and that of the runtimes has one."""
    return fault(
        "NonZero | of a scalar | a row of indices instead of none",
        "g (float x) => (int64[a, b] y) { y = NonZero (x) }",
        applies=lambda node, _: shape_of(node.inputs[0]) == [],
        rewrite=None if refused else _without_rows,
        feeds={"x": 3},
    )


def ignores_lengths(node: ir.Node, _: int) -> bool:
    """Whether there are sequence lengths that are not known to be that of the whole input."""
    lengths = input_of(node, 4)
    if lengths is None:
        return False
    constant, sizes = array_of(lengths), shape_of(node.inputs[0])
    if constant is None or sizes is None:
        return True
    return not (isinstance(sizes[0], int) and (constant == sizes[0]).all())


def without_lengths(fault: Rows, operator: str, applies: Condition) -> Fault:
    """A recurrent layer that computes padding too."""
    expected = {
        "LSTM": 0.3696064,  # sigmoid(1) * tanh(sigmoid(1) * tanh(1))
        "GRU": 0.2048242,  # (1 - sigmoid(1)) * tanh(1)
        "RNN": 0.7615942,  # tanh(1)
    }[operator]
    gates = GATES[operator]
    weights = ", ".join(["1"] * gates)
    zeros = ", ".join(["0"] * gates)
    return fault(
        f"{operator} | `sequence_lens` shorter than the input | it ignores them",
        f"g (float[s, b, 1] x, int32[b] l) => (float[s, 1, b, 1] y) <float[1, {gates}, 1] w = {{{weights}}}, "
        f"float[1, {gates}, 1] r = {{{zeros}}}, float[1, {2 * gates}] b = {{{zeros}, {zeros}}}> "
        f"{{ y = {operator} <hidden_size = 1> (x, w, r, b, l) }}",
        applies=applies,
        feeds={"x": np.ones((2, 1, 1)), "l": [1]},
        expected=[np.array([expected, 0]).reshape(2, 1, 1, 1)],
    )


def of_one_step(
    fault: Rows, operator: str, condition: str, result: str, applies: Condition, attribute: str, expected: float
) -> Fault:
    """A recurrent layer with an attribute, of a step of 1 with weights of 1."""
    gates = GATES[operator]
    weights = ", ".join(["1"] * gates)
    return fault(
        f"{operator} | {condition} | {result}",
        f"g (float[1, 1, 1] x) => (float[1, 1, 1, 1] y) <float[1, {gates}, 1] w = {{{weights}}}> "
        f"{{ y = {operator} <hidden_size = 1, {attribute}> (x, w, w) }}",
        applies=applies,
        feeds={"x": np.ones((1, 1, 1))},
        expected=[np.full((1, 1, 1, 1), expected)],
    )


def with_coupled_gates(fault: Rows) -> Fault:
    """An LSTM whose input gate should be 1 minus its forget gate."""
    expected = 0.1473561  # with 1 - sigmoid(1) as the input gate
    return of_one_step(
        *(fault, "LSTM", "`input_forget` = 1", "it ignores it"), _couples_gates, "input_forget = 1", expected
    )


def flattened(fault: Rows, operator: str, opsets: range) -> Fault:
    """Before opset 13, an input is coerced into a matrix at the axis."""

    def applies(node: ir.Node, opset: int) -> bool:
        axis, sizes = _axis(node), shape_of(node.inputs[0])
        return opset in opsets and axis != -1 and (sizes is None or axis % len(sizes) != len(sizes) - 1)

    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    rows = x.reshape(2, 4) - x.reshape(2, 4).max(1, keepdims=True)
    softmax = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    expected = {"Softmax": softmax, "LogSoftmax": np.log(softmax), "Hardmax": (rows == 0).astype(np.float32)}
    return fault(
        f"{operator} | opsets {opsets.start} to {opsets.stop - 1}, an axis other than the last | along the axis alone",
        f"g (float[a, b, c] x) => (float[a, b, c] y) {{ y = {operator} <axis = 1> (x) }}",
        applies=applies,
        rewrite=_as_matrix,
        opset=11,
        feeds={"x": x},
        expected=[expected[operator].reshape(x.shape)],
    )


def local_response(fault: Rows, condition: str, result: str, applies: Condition) -> Fault:
    """A local response normalization of each channel and the next, with a bias."""
    squares = np.array([1 + 4, 4 + 9, 9], np.float32)
    return fault(
        f"LRN | {condition} | {result}",
        "g (float[a, b, c, d] x) => (float[e, f, g, h] y) "
        "{ y = LRN <size = 2, alpha = 2.0, beta = 1.0, bias = 2.0> (x) }",
        applies=applies,
        rewrite=_by_pool,
        feeds={"x": np.array([1, 2, 3]).reshape(1, 3, 1, 1)},
        expected=[(np.array([1, 2, 3], np.float32) / (2 + squares)).reshape(1, 3, 1, 1)],
    )


def is_half(node: ir.Node, _: int) -> bool:
    """Whether a node of one output computes in fp16, by its first input."""
    return kind_of(node.inputs[0]) == "FLOAT16" and len(node.outputs) == 1


def through_single(op: Nodes, node: ir.Node) -> ir.Value:
    """The node in fp32, its inputs and its output in fp16 as they were."""
    inputs = [op.cast(value, np.float32) if kind_of(value) == "FLOAT16" else value for value in node.inputs]
    return op.cast(op(node.op_type, *inputs, **node.attributes), np.float16)


def shrink_by_selection(op: Nodes, node: ir.Node) -> ir.Value:
    """Where instead of products with zero, which are NaN for infinities, in the node's own type."""
    x, kind = node.inputs[0], dtype_of(node.inputs[0], np.float32)
    limit, bias = attribute_of(node, "lambd", 0.5), attribute_of(node, "bias", 0.0)
    low, high, shift, zero = (op.constant(number, kind) for number in (-limit, limit, bias, 0))
    upper = op("Where", op("Less", high, x), op("Sub", x, shift), zero)
    return op("Where", op("Less", x, low), op("Add", x, shift), upper)


def _as_matrix(op: Nodes, node: ir.Node) -> ir.Value:
    (x,) = node.inputs
    computed = op(node.op_type, op("Flatten", x, axis=_axis(node)), axis=1)
    return op("Reshape", computed, op("Shape", x))


def _by_pool(op: Nodes, node: ir.Node) -> ir.Value:
    """With the means of squares over channels, where those that do not exist count as zeros."""
    (x,), size = node.inputs, attribute_of(node, "size")
    assert x is not None
    alpha, beta, bias = (
        op.constant(attribute_of(node, name, default), dtype_of(x, np.float32))
        for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    channels = op("Unsqueeze", op("Reshape", op("Mul", x, x), op.constant([0, 0, -1])), op.constant([1]))
    before = (size - 1) // 2
    pads = [before, 0, size - 1 - before, 0]
    means = op("AveragePool", channels, kernel_shape=[size, 1], pads=pads, count_include_pad=1)
    scale = op("Mul", op("Reshape", means, op("Shape", x)), alpha)
    return op("Div", x, op("Pow", op("Add", scale, bias), beta))


def _axis(node: ir.Node) -> int:
    return node.attributes["axis"].as_int() if "axis" in node.attributes else 1


def _couples_gates(node: ir.Node, _: int) -> bool:
    attribute = node.attributes.get("input_forget")
    return attribute is not None and (attribute.is_ref() or bool(attribute.value))


def _without_rows(op: Nodes, node: ir.Node) -> ir.Value:
    nowhere = op.constant(np.zeros(0, np.int64))
    return op("Gather", op("NonZero", *node.inputs), nowhere, axis=0)
