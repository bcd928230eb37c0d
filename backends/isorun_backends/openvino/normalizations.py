"""Layer normalizations that OpenVINO computes wrongly in quantized models: rows of the table in ``faults``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import Nodes, array_of
from isorun_backends.openvino.row import fault

if TYPE_CHECKING:
    import onnx_ir as ir

_SAME = ("Identity", "Neg", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_QUANTIZING = ("QuantizeLinear", "DequantizeLinear")


def _is_scaled(node: ir.Node, _: int) -> bool:
    """Whether a number scales the input, in a model that is quantized: only there are scales moved."""
    source = None if node.inputs[0] is None else node.inputs[0].producer()
    while source is not None and source.op_type in _SAME and source.inputs[0] is not None:
        source = source.inputs[0].producer()
    if source is None or source.op_type not in ("DequantizeLinear", "Div", "Mul"):
        return False
    factors = [numbers for value in source.inputs[:2] if (numbers := array_of(value)) is not None]
    scales = source.op_type == "DequantizeLinear" or any(numbers.size == 1 for numbers in factors)
    return scales and node.graph is not None and any(neighbour.op_type in _QUANTIZING for neighbour in node.graph)


def _subtracts_mean(node: ir.Node, opset: int) -> bool:
    """Whether a difference is the first step of such a normalization in other operators."""
    mean = None if node.inputs[1] is None else node.inputs[1].producer()
    return (
        mean is not None
        and mean.op_type == "ReduceMean"
        and mean.inputs[0] is node.inputs[0]
        and _is_scaled(node, opset)
    )


def _of_selected(op: Nodes, node: ir.Node) -> ir.Value:
    """The operator of what is selected from two times the same value: no scale is moved past that."""
    (x, *others) = node.inputs
    selected = op("Where", op("IsNaN", x), x, x)
    return op(node.op_type, selected, *others, **{name: item.value for name, item in node.attributes.items()})


_X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(1, 2, 8) ** 3
_SCALED = _X * np.float32(0.001)
_CENTERED = _SCALED - _SCALED.mean(-1, keepdims=True)
_NORMALIZED = _CENTERED / np.sqrt(np.square(_CENTERED).mean(-1, keepdims=True) + np.float32(1e-5))


def _row(operator: str, steps: str, applies: Callable[[ir.Node, int], bool] = _is_scaled) -> Fault:
    return fault(
        f"{operator} | normalizing what is multiplied or divided by a number, or turned back from integers, in a "
        "quantized model | the result for the numbers without the factor: `epsilon` weighs less or more",
        "g (float[N, 2, 8] x) => (float[N, 2, 8] y, float[N, 2, 2] p) <float f = {0.001}, float e = {0.00001}, "
        "float[8] g = {1, 1, 1, 1, 1, 1, 1, 1}, float[2] i = {1, 1}, float[2] b = {0, 0}, float s = {0.02}, "
        "uint8 z = {128}, float t = {0.01}, int8 wz = {0}, float two = {2}, "
        "int8[8, 2] w = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> "
        f"{{ m = Mul (x, f) {steps} q = QuantizeLinear (y, s, z) d = DequantizeLinear (q, s, z) "
        "v = DequantizeLinear (w, t, wz) p = MatMul (d, v) }",
        applies=applies,
        rewrite=_of_selected,
        feeds={"x": _X},
        expected=[
            _NORMALIZED,
            np.stack([np.rint(_NORMALIZED[..., 0] * 50) * np.float32(0.0002), np.zeros((1, 2))], -1),
        ],
    )


ROWS = (
    _row("LayerNormalization", "y = LayerNormalization (m, g)"),
    _row("InstanceNormalization", "y = InstanceNormalization (m, i, b)"),
    _row(
        "Sub",
        "a = ReduceMean <axes = [-1]> (m) c = Sub (m, a) h = Pow (c, two) r = ReduceMean <axes = [-1]> (h) "
        "k = Add (r, e) l = Sqrt (k) y = Div (c, l)",
        _subtracts_mean,
    ),
)
