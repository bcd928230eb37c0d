"""What tract computes wrongly, without an error, and what ends the process: a panic of Rust aborts it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import Fault, KnownFaults
from isorun_tract import equivalents, indices
from isorun_tract.equivalents import attribute_of
from isorun_tract.row import fault as _fault

if TYPE_CHECKING:
    import onnx_ir as ir

_MOVING = ("Identity", "Neg", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Expand")
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# Of 1 and -2: forward, in reverse, with Relu everywhere, and with clip = 0.5
_RESULTS = {
    "RNN": ((0.7615942, -0.8450003), (0.0359569, -0.9640276), (1.0, 0.0), (0.4621172, -0.4621171)),
    "GRU": ((0.2048242, -0.7957187), (-0.2273791, -0.8491127), (0.0, 0.0), (0.1744680, -0.2217803)),
    "LSTM": ((0.3696064, -0.0098948), (0.3172881, -0.0136382), (1.0, 0.0), (0.1742697, -0.0248322)),
}
_COUPLED = (0.1476791, -0.0896713)  # with 1 minus the forget gate as the input gate
_ACTIVATIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def _differs(name: str, *usual: Any) -> Callable[[ir.Node, int], bool]:
    """Whether an attribute has other values than the first, its default, and some more."""
    return lambda node, _: attribute_of(node, name, usual[0]) not in usual


def _activates_otherwise(node: ir.Node, _: int) -> bool:
    usual = _ACTIVATIONS[node.op_type]
    return list(attribute_of(node, "activations", usual) or ()) not in (usual, usual * 2)


def _has_unknown_batch(node: ir.Node, _: int) -> bool:
    x, axis = node.inputs[0], 0 if attribute_of(node, "layout", 0) else 1
    return x is None or x.shape is None or not isinstance(x.shape[axis], int)


def _pads_with_value(node: ir.Node, _: int) -> bool:
    has_value = len(node.inputs) > 2 and node.inputs[2] is not None
    return has_value and attribute_of(node, "mode", "constant") != "constant"


def _may_widen_dividend(node: ir.Node, _: int) -> bool:
    """Whether the dividend may have fewer elements than the remainders."""
    dividend, divisor = ([] if value is None or value.shape is None else list(value.shape) for value in node.inputs)
    if len(dividend) < len(divisor) or not dividend:
        return True
    pairs = zip(reversed(dividend), reversed(divisor), strict=False)
    return any(extent not in (1, size) and not (isinstance(size, int) and size > 1) for size, extent in pairs)


def _raises_integers_to_unsigned(node: ir.Node, _: int) -> bool:
    base, exponent = (None if value is None else value.dtype for value in node.inputs)
    return (base is None or base.is_integer()) and (
        exponent is None or (exponent.is_integer() and not exponent.is_signed())
    )


def _rounds_to_other_type(node: ir.Node, _: int) -> bool:
    has_zero = len(node.inputs) > 2 and node.inputs[2] is not None
    return not has_zero and attribute_of(node, "output_dtype", 0) not in (0, 2)  # uint8


def _is_of_integers(node: ir.Node, _: int) -> bool:
    x = node.inputs[0]
    return x is None or x.dtype is None or x.dtype.is_integer()


def _is_of_quantized(node: ir.Node, _: int) -> bool:
    """Whether an input is dequantized, and at most moved after that."""
    producer = None if node.inputs[0] is None else node.inputs[0].producer()
    while producer is not None and producer.op_type in _MOVING and producer.inputs[0] is not None:
        producer = producer.inputs[0].producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def _is_mixed(value: ir.Value | None) -> bool:
    """Whether a value is a constant with different elements."""
    import onnx_ir as ir

    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return tensor is not None and tensor.size > 1 and len(np.unique(tensor.numpy())) > 1


def _neighbors(node: ir.Node | None, steps: int, *, forward: bool) -> Iterator[ir.Node]:
    """A node and those of a few operators of a GELU before or after it."""
    if node is None:
        return
    yield node
    if steps:
        if forward:
            neighbors = [use for output in node.outputs for use in output.consumers()]
        else:
            neighbors = [producer for value in node.inputs if value and (producer := value.producer())]
        for neighbor in neighbors:
            if neighbor.op_type in ("Add", "Div", "Mul", "Pow"):
                yield from _neighbors(neighbor, steps - 1, forward=forward)


def _is_erf_of_vectors(node: ir.Node, _: int) -> bool:
    """Whether an Erf is in what may be a GELU, but for constants of several values."""
    before = [part for part in _neighbors(node, 1, forward=False) if part.op_type != "Add"]  # of a bias
    after = list(_neighbors(node, 3, forward=True))
    halves = (producer for part in after for value in part.inputs if value and (producer := value.producer()))
    parts = [*before, *after, *(part for part in halves if part.op_type == "Mul")]
    return any(_is_mixed(value) for part in parts for value in part.inputs)


def _is_tanh_of_powers(node: ir.Node, _: int) -> bool:
    """Whether a Tanh is in what may be a GELU, but for an exponent of several values."""
    parts = _neighbors(node, 4, forward=False)
    return any(part.op_type == "Pow" and _is_mixed(part.inputs[1]) for part in parts)


def _recurrent(
    operator: str,
    condition: str,
    result: str,
    applies: Callable[[ir.Node, int], bool],
    attributes: str,
    expected: tuple[float, float],
) -> Fault:
    """A row of a recurrent layer with a hidden size of 1, whose weights are 1."""
    gates = _GATES[operator]
    weights = ", ".join(["1"] * gates)
    batch = "1" if attributes else "b"
    return _fault(
        operator=operator,
        condition=condition,
        result=result,
        applies=applies,
        model=(
            f"g (float[2, {batch}, 1] x) => (float[2, 1, {batch}, 1] y) <float[1, {gates}, 1] w = {{{weights}}}> "
            f"{{ y = {operator} <hidden_size = 1{attributes}> (x, w, w) }}"
        ),
        feeds={"x": np.array([1, -2], np.float32).reshape(2, 1, 1)},
        expected=[np.array(expected, np.float32).reshape(2, 1, 1, 1)],
        ends_process=not attributes,
    )


def _rows_of(operator: str) -> Iterator[Fault]:
    forward, reverse, relu, clip = _RESULTS[operator]
    yield _recurrent(
        operator, "a batch whose size is not fixed", "it ends the process", _has_unknown_batch, "", forward
    )
    reverses = _differs("direction", "forward", "bidirectional")
    yield _recurrent(operator, "`direction` = reverse", "it runs forward", reverses, ', direction = "reverse"', reverse)
    relus = ", ".join(['"Relu"'] * len(_ACTIVATIONS[operator]))
    yield _recurrent(
        operator,
        "`activations` other than the usual ones",
        "it computes the usual ones",
        _activates_otherwise,
        f", activations = [{relus}]",
        relu,
    )
    yield _recurrent(
        operator, "`clip`", "it ignores it", lambda node, _: "clip" in node.attributes, ", clip = 0.5", clip
    )


def _activation(operator: str, place: str, constants: str, steps: str, function: Callable[[Any], Any]) -> Fault:
    x = np.array([-1.5, -0.5, 0.5, 1.5], np.float32)
    return _fault(
        operator=operator,
        condition=f"in what would be a GELU, but for {place} of several values",
        result="a GELU",
        applies={"Erf": _is_erf_of_vectors, "Tanh": _is_tanh_of_powers}[operator],
        model=f"g (float[4] x) => (float[4] y) <float half = {{0.5}}, float three = {{3}}, {constants}> {{ {steps} }}",
        feeds={"x": x},
        expected=[function(x)],
    )


def _has_no_kernel(node: ir.Node, _: int) -> bool:
    """Whether integers are multiplied that are neither of 8 bits nor int32."""
    dtype = None if node.inputs[0] is None else node.inputs[0].dtype
    return dtype is None or (dtype.is_integer() and dtype.bitwidth != 8 and dtype.name != "INT32")


def _multiplies(operator: str, attributes: str = "") -> Fault:
    return _fault(
        operator=operator,
        condition="int64, int16 and unsigned integers of more than 8 bits",
        result="it ends the process",
        applies=_has_no_kernel,
        model=f"g (int64[a, b] x, int64[b, c] z) => (int64[a, c] y) {{ y = {operator} {attributes}(x, z) }}",
        feeds={"x": np.array([[2, 3]]), "z": np.array([[4], [5]])},
        ends_process=True,
    )


def _erf(x: Any) -> Any:
    return np.array([math.erf(number) for number in x], np.float32)


_ROOT = "float r = {1.4142135}"
_ONE = "float one = {1}"
_BY_ERF = "a = Div (x, r) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Mul (d, half)"
_BY_TANH = (
    "a = Pow (x, power) b = Mul (a, k) c = Add (x, b) d = Mul (c, s) e = Tanh (d) f = Add (e, one) h = Mul (x, f) "
    "y = Mul (h, half)"
)
_VECTOR = np.array([1, 1, 1, 2], np.float32)

FAULTS = KnownFaults(
    rows=(
        *(row for operator in _GATES for row in _rows_of(operator)),
        _recurrent(
            "LSTM",
            "`input_forget` = 1",
            "it ignores it",
            _differs("input_forget", 0),
            ", input_forget = 1",
            _COUPLED,
        ),
        _fault(
            operator="Pad",
            condition="`constant_value` with another `mode` than constant",
            result="it pads with the constant",
            applies=_pads_with_value,
            rewrite=equivalents.without_value,
            model=(
                "g (float[a, b] x) => (float[c, d] y) <int64[4] p = {0, 1, 0, 1}, float v = {0}> "
                '{ y = Pad <mode = "edge"> (x, p, v) }'
            ),
            feeds={"x": np.array([[1, 2]], np.float32)},
            expected=[np.array([[1, 1, 2, 2]], np.float32)],
        ),
        _fault(
            operator="Softplus",
            condition="numbers above 88 in fp32, or 11 in fp16",
            result="infinity",
            applies=lambda *_: True,
            rewrite=equivalents.stable_softplus,
            model="g (float[n] x) => (float[n] y) { y = Softplus (x) }",
            feeds={"x": np.array([-100, -1, 0, 1, 100], np.float32)},
        ),
        _fault(
            operator="Softmax",
            condition="between a dequantization and a quantization",
            result="1 for each number",
            applies=_is_of_quantized,
            rewrite=equivalents.above_lowest,
            model=(
                "g (int8[a, b] x) => (int8[c, d] y) <float s = {0.1}, int8 z = {0}, float r = {0.01}> "
                "{ h = DequantizeLinear (x, s, z) p = Softmax (h) y = QuantizeLinear (p, r, z) }"
            ),
            opset=19,
            feeds={"x": np.array([[0, 10, 20]], np.int8)},
        ),
        _fault(
            operator="Mod",
            condition="a dividend with fewer elements than the remainders",
            result="the remainders of the divisor by the dividend, or the end of the process",
            applies=_may_widen_dividend,
            model="g (int32[2, 1] x, int32[3] z) => (int32[2, 3] y) { y = Mod (x, z) }",
            feeds={"x": np.array([[17], [-22]], np.int32), "z": np.array([3, 4, 5], np.int32)},
        ),
        _fault(
            operator="Swish",
            condition="`alpha` other than 1",
            result="it ignores it",
            applies=_differs("alpha", 1.0),
            rewrite=equivalents.scaled_swish,
            model="g (float[n] x) => (float[n] y) { y = Swish <alpha = 0.5> (x) }",
            opset=24,
            feeds={"x": np.array([-2, 3], np.float32)},
        ),
        _fault(
            operator="Celu",
            condition="`alpha` other than 1",
            result="negative results are not multiplied by it",
            applies=_differs("alpha", 1.0),
            rewrite=equivalents.scaled_celu,
            model="g (float[n] x) => (float[n] y) { y = Celu <alpha = 0.5> (x) }",
            feeds={"x": np.array([-2, 3], np.float32)},
        ),
        _fault(
            operator="Pow",
            condition="integers to the power of unsigned ones",
            result="it ends the process",
            applies=_raises_integers_to_unsigned,
            rewrite=equivalents.same_type,
            model="g (int32[n] x, uint8[n] z) => (int32[n] y) { y = Pow (x, z) }",
            feeds={"x": np.array([3, -2], np.int32), "z": np.array([2, 3], np.uint8)},
            ends_process=True,
        ),
        *indices.ROWS,
        _multiplies("MatMul"),
        _multiplies("Gemm"),
        _multiplies("Einsum", '<equation = "ij, jk -> ik"> '),
        _fault(
            operator="Shrink",
            condition="integers",
            result="it ignores the fraction of `bias` and `lambd`",
            applies=_is_of_integers,
            model="g (int32[n] x) => (int32[n] y) { y = Shrink <bias = 0.5> (x) }",
            feeds={"x": np.array([-4, 3], np.int32)},
        ),
        _fault(
            operator="ReduceLogSumExp",
            condition="numbers above 88, or below -103 alone",
            result="infinity: it does not subtract the maximum",
            applies=lambda *_: True,
            model="g (float[n] x) => (float[1] y) { y = ReduceLogSumExp (x) }",
            feeds={"x": np.array([100, 100], np.float32)},
        ),
        _fault(
            operator="QuantizeLinear",
            condition="`output_dtype` other than uint8 without a zero point",
            result="integers of uint8",
            applies=_rounds_to_other_type,
            model=(
                "g (float[n] x) => (float[n] y) <float s = {1}> "
                "{ q = QuantizeLinear <output_dtype = 3> (x, s) y = Cast <to = 1> (q) }"
            ),
            opset=21,
            feeds={"x": np.array([-3, 5], np.float32)},
        ),
        _activation(
            "Erf",
            "constants",
            f"{_ROOT}, float[4] one = {{1, 1, 1, 2}}",
            _BY_ERF,
            lambda x: x / 2 * (_VECTOR + _erf(x / math.sqrt(2))),
        ),
        _activation(
            "Tanh",
            "an exponent",
            f"float[4] power = {{3, 3, 3, 1}}, float k = {{0.044715}}, float s = {{0.7978845}}, {_ONE}",
            _BY_TANH,
            lambda x: x / 2 * (1 + np.tanh(0.7978845 * (x + 0.044715 * x ** np.array([3, 3, 3, 1], np.float32)))),
        ),
    )
)
"""Named by :class:`isorun_tract.backend.Tract`."""
