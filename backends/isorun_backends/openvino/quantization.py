"""What OpenVINO makes of activations that are rounded to integers and back (QDQ): rows of the table in ``faults``.

Its low-precision transformations move the scale of integers past the operators that read them. That is right where
matrix products read them, which is what it gains speed by, and often wrong elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import Nodes, array_of, attribute_of, input_of, kind_of, producer, shape_of
from isorun_backends.openvino.row import fault

if TYPE_CHECKING:
    import onnx_ir as ir

_CONTRIB = "com.microsoft."
_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_RANGES = {
    "UINT4": (0, 15),
    "INT4": (-8, 7),
    "UINT8": (0, 255),
    "INT8": (-128, 127),
    "UINT16": (0, 65535),
    "INT16": (-32768, 32767),
}
_BYTES = ("UINT8", "INT8")
_MISREADING = ("Gather", "AveragePool", "BatchNormalization", "MaxPool")
_PRODUCTS = ("MatMul", "Gemm")
_VIEWS = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Split", "Identity")
_OVERFLOW = 1e38
_X = np.linspace(-2, 2, 48, dtype=np.float32).reshape(1, 6, 8)
_ROUNDED = np.rint(_X / np.float32(0.05)) * np.float32(0.05)


def quantizes_wrongly(node: ir.Node, _: int) -> bool:
    """Whether integers that are not turned back at once are computed wrongly."""
    output = node.outputs[0]
    if not output.is_graph_output() and all(reader.op_type == _DEQUANTIZE for reader, _ in output.uses()):
        return False
    return _can_compute(node) and _is_wrong(node)


def rounds_wrongly(node: ir.Node, _: int) -> bool:
    """Whether a value that is rounded to integers and back is computed wrongly, or other operators may be that read
    it."""
    quantize = producer(input_of(node, 0), _QUANTIZE)
    if quantize is None or not (_can_compute(quantize) and _can_compute(node)):
        return False
    return _is_wrong(quantize) or not any(_products(node.outputs[0]))


def weighs_wrongly(node: ir.Node, _: int) -> bool:
    """Whether the weights of a convolution, or of a product with misread results, are turned back from integers."""
    return (
        any(_is_misread(reader) for reader, _ in node.outputs[0].uses())
        and array_of(node.inputs[0]) is not None
        and array_of(input_of(node, 1)) is not None
        and _can_compute(node)
    )


def weighs_sums_wrongly(node: ir.Node, _: int) -> bool:
    """Whether constants that are turned back from integers have scales along an axis that a product sums over."""
    return (
        any(_sums_over_scales(reader) for reader in _readers(node.outputs[0]))
        and array_of(node.inputs[0]) is not None
        and array_of(input_of(node, 1)) is not None
        and _can_compute(node)
    )


def weights(op: Nodes, node: ir.Node) -> ir.Value:
    """The weights in floating point."""

    def array(index: int) -> np.ndarray:
        numbers = array_of(input_of(node, index))
        return np.zeros(1, np.float32) if numbers is None else numbers.astype(np.float32)

    integers, scale, zero = map(array, range(3))
    sizes = [1] * integers.ndim
    if scale.size > 1:
        sizes[attribute_of(node, "axis", 1)] = -1
        scale = scale.reshape(sizes)
    if zero.size > 1:
        zero = zero.reshape(sizes)
    return op.constant((integers - zero) * scale)


def integers(op: Nodes, node: ir.Node) -> ir.Value:
    """The integers in standard operators."""
    import onnx_ir as ir

    return op("Cast", _rounded(op, node), to=ir.DataType[_type_of(node)])


def rounded(op: Nodes, node: ir.Node) -> ir.Value:
    """The rounded value in operators of floating point alone."""
    quantize = producer(input_of(node, 0), _QUANTIZE)
    assert quantize is not None
    first, second = (array_of(input_of(part, 2)) for part in (quantize, node))
    # From (q - z) s, OpenVINO makes q s - z s, which may overflow.
    is_shifted = first is not None and second is not None and np.array_equal(first, second)
    total = _rounded(op, quantize, is_shifted=is_shifted)
    scale, zero = _in_place(op, node)
    if zero is not None and not is_shifted:
        total = op("Sub", total, zero)
    return op("Mul", total, scale)


def _rounded(op: Nodes, node: ir.Node, *, is_shifted: bool = False) -> ir.Value:
    """The integers of QuantizeLinear, in floating point, or these less its zero point: of 16 bits or less, they are
    exact there."""
    scale, zero = _in_place(op, node)
    total = op("Round", op("Div", node.inputs[0], scale))
    if zero is not None and not is_shifted:
        total = op("Add", total, zero)
    for operator, number in zip(("Max", "Min"), _RANGES[_type_of(node)], strict=True):
        limit = op.constant(number, np.float32)
        if zero is not None and is_shifted:
            limit = op("Sub", limit, zero)
        total = op(operator, total, limit)
    return total


def _in_place(op: Nodes, node: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """The scale and the zero point in floating point, along their axis."""
    scale, zero = node.inputs[1], input_of(node, 2)
    assert scale is not None
    if zero is not None:
        zero = op.cast(zero, np.float32)
    axis = attribute_of(node, "axis", 1)
    rank = len(shape_of(node.inputs[0]) or ())
    if not _is_scalar(scale) and axis != -1 and -rank <= axis < rank:
        sizes = [1] * rank
        sizes[axis] = -1
        shape = op.constant(sizes)
        scale = op("Reshape", scale, shape)
        zero = None if zero is None else op("Reshape", zero, shape)
    return scale, zero


def _can_compute(node: ir.Node) -> bool:
    """Whether the value of QuantizeLinear or DequantizeLinear can be written in standard operators."""
    scale, value = input_of(node, 1), node.inputs[0]
    if scale is None or value is None or kind_of(scale) != "FLOAT":
        return False
    if attribute_of(node, "block_size", 0) or (node.op_type == _QUANTIZE and _type_of(node) not in _RANGES):
        return False
    return _is_scalar(scale) or attribute_of(node, "axis", 1) == -1 or value.shape is not None


def _is_wrong(node: ir.Node) -> bool:
    """Whether QuantizeLinear itself is computed wrongly."""
    scale = array_of(node.inputs[1])
    low, high = _RANGES[_type_of(node)]
    overflows = scale is not None and float(np.abs(scale).max(initial=0)) * (high - low) > _OVERFLOW
    return _type_of(node) not in _BYTES or overflows or _is_by_unknown_axis(node) or _is_turned(node.inputs[0])


def _is_by_unknown_axis(node: ir.Node) -> bool:
    """Whether scales are along an axis whose size the model does not state, or beyond the second one of such a shape:
    OpenVINO takes another axis, or fails to load."""
    sizes, scale = shape_of(node.inputs[0]), input_of(node, 1)
    if scale is None or _is_scalar(scale) or sizes is None:
        return False
    axis = attribute_of(node, "axis", 1) % max(1, len(sizes))
    return not all(isinstance(size, int) for size in sizes) and not (axis < 2 and isinstance(sizes[axis], int))


def _is_turned(value: ir.Value | None) -> bool:
    """Whether a value is another one times several numbers, of which some are negative."""
    factor = value.producer() if value is not None else None
    if factor is None or factor.op_type not in ("Mul", "Div", "BatchNormalization"):
        return False
    constants = [numbers for read in factor.inputs[:2] if (numbers := array_of(read)) is not None]
    return any(numbers.size > 1 and numbers.min() < 0 for numbers in constants)


def _products(value: ir.Value) -> Iterator[ir.Node]:
    """The products of a rounded value with another one, or with rounded weights, whose results are not misread."""
    for reader, index in value.uses():
        if reader.op_type in _PRODUCTS and index < 2:
            if _is_rounded(reader.inputs[1 - index]) and not _is_misread(reader):
                yield reader
        elif reader.op_type in _VIEWS or (reader.op_type in ("Mul", "Div") and _is_scaled(reader)):
            for output in reader.outputs:
                yield from _products(output)


def _is_misread(product: ir.Node) -> bool:
    """Whether OpenVINO crashes or computes wrongly where a product of integers is read, as of any convolution."""
    if product.op_type not in _PRODUCTS:
        return product.op_type == "Conv"
    if _sums_over_scales(product):
        return True
    readers = [reader for reader, _ in product.outputs[0].uses()]
    return any(reader.op_type in _MISREADING or _is_turned(reader.outputs[0]) for reader in readers)


def _sums_over_scales(product: ir.Node) -> bool:
    """Whether an input of a matrix product may have several scales along the axis that is summed over: OpenVINO takes
    them for scales of the result."""
    if product.op_type not in _PRODUCTS:
        return False
    turned = [bool(attribute_of(product, f"trans{name}", 0)) for name in "AB"]
    return _may_have_scales_along(product.inputs[0], -2 if turned[0] else -1) or _may_have_scales_along(
        product.inputs[1], -1 if turned[1] else -2
    )


def _may_have_scales_along(value: ir.Value | None, along: int) -> bool:
    """Whether a value may be turned back from integers with several scales along an axis, which is negative."""
    axis: int | None = along
    while (source := producer(value)) is not None:
        value, rank = source.inputs[0], len(shape_of(source.inputs[0]) or ())
        if source.op_type == _DEQUANTIZE:
            scale = input_of(source, 1)
            if scale is None or _is_scalar(scale) or attribute_of(source, "block_size", 0):
                return False
            own = attribute_of(source, "axis", 1)
            return axis is None or not rank or (own if own < 0 else own - rank) == axis
        if source.op_type == "Transpose" and axis is not None and rank:
            order = attribute_of(source, "perm") or range(rank)[::-1]
            axis = order[axis] - rank
        elif source.op_type in _VIEWS and source.op_type not in ("Identity", "Split"):
            axis = None
        elif source.op_type not in _VIEWS and not _is_scaled(source):
            return False
    return False


def _readers(value: ir.Value) -> Iterator[ir.Node]:
    """What reads a value, or a view of it."""
    for reader, _ in value.uses():
        if reader.op_type in _VIEWS or (reader.op_type in ("Mul", "Div") and _is_scaled(reader)):
            for output in reader.outputs:
                yield from _readers(output)
        else:
            yield reader


def _is_rounded(value: ir.Value | None) -> bool:
    while (source := producer(value)) is not None:
        if source.op_type == _DEQUANTIZE:
            return True
        if source.op_type not in _VIEWS and not _is_scaled(source):
            return False
        value = source.inputs[0]
    return False


def _is_scaled(node: ir.Node) -> bool:
    """Whether a node multiplies by a constant number."""
    return node.op_type in ("Mul", "Div") and any(read is not None and _is_scalar(read) for read in node.inputs)


def _type_of(node: ir.Node) -> str:
    """The name of the type of QuantizeLinear's integers."""
    import onnx_ir as ir

    zero = input_of(node, 2)
    if zero is not None:
        return kind_of(zero)
    return ir.DataType(attribute_of(node, "output_dtype", 0) or ir.DataType.UINT8).name


def _is_scalar(value: ir.Value) -> bool:
    numbers = array_of(value)
    return numbers is not None and numbers.size == 1


def _rows(domain: str) -> tuple[Fault, ...]:
    """The rows for the operators of a domain, a prefix of their names."""
    return (
        fault(
            f"{domain + _DEQUANTIZE} | the weights of a convolution; of a product that `Gather`, a pool or "
            "`BatchNormalization` reads | products and extrema without the scale; a crash",
            "g (float[N, 1, 8] x) => (float[N, 1, 7] y) <float s = {0.05}, uint8 z = {128}, int8 wz = {0}, "
            f"int8[1, 1, 2] w = {{40, -20}}> {{ q = {domain}QuantizeLinear (x, s, z) "
            f"d = {domain}DequantizeLinear (q, s, z) v = {domain}DequantizeLinear (w, s, wz) c = Conv (d, v) "
            "y = Mul (c, c) }",
            applies=weighs_wrongly,
            rewrite=weights,
            feeds={"x": _X[:, :1]},
            expected=[np.square(np.convolve(_ROUNDED[0, 0], [-1, 2], "valid")[None, None])],
        ),
        fault(
            f"{domain + _DEQUANTIZE} | the weights of a matrix product, with scales along the axis that it sums over | "
            "products with those of other rows",
            "g (float[N, 4] x) => (float[N, 2] y) <float[4] t = {0.01, 0.02, 0.05, 0.1}, int8[4] wz = {0, 0, 0, 0}, "
            "int8[4, 2] w = {40, -20, 30, 50, 10, -60, 70, 5}> "
            f"{{ v = {domain}DequantizeLinear <axis = 0> (w, t, wz) y = MatMul (x, v) }}",
            applies=weighs_sums_wrongly,
            rewrite=weights,
            feeds={"x": np.eye(4)},
            expected=[[[0.4, -0.2], [0.6, 1], [0.5, -3], [7, 0.5]]],
        ),
        fault(
            f"{domain + _DEQUANTIZE} | a value of `QuantizeLinear` that no matrix product reads, or that is computed "
            "wrongly itself | a value of `Pad` that is not scaled, infinite sums with great numbers; a crash after "
            "`Concat`",
            "g (float[N, 6, 8] x) => (float[N, M, 8] y) <float s = {0.05}, uint8 z = {128}, float value = {1.5}, "
            f"int64[6] pads = {{0, 1, 0, 0, 0, 0}}> {{ q = {domain}QuantizeLinear (x, s, z) "
            f"d = {domain}DequantizeLinear (q, s, z) y = Pad (d, pads, value) }}",
            applies=rounds_wrongly,
            rewrite=rounded,
            feeds={"x": _X},
            expected=[np.pad(_ROUNDED, ((0, 0), (1, 0), (0, 0)), constant_values=1.5)],
        ),
        fault(
            f"{domain + _QUANTIZE} | 16 bits; a range of more than 1e38; several factors before it, some of them "
            "negative; scales along an axis of unknown size | numbers out of range wrap around; lower limits; wrong "
            "numbers; scales along another axis",
            "g (float[N, 6, 8] x) => (uint16[N, 6, 8] y) <float s = {1}, uint16 z = {0}> "
            f"{{ y = {domain}QuantizeLinear (x, s, z) }}",
            applies=quantizes_wrongly,
            rewrite=integers,
            opset=21,
            feeds={"x": _X},
            expected=[np.maximum(np.rint(_X), 0).astype(np.uint16)],
        ),
    )


def _of_integers(operator: str, attributes: str = "", *, of_two: bool = False, sizes_first: bool = False) -> Fault:
    """An operator that reads and returns integers with their scales, as quantizers write beside QDQ."""
    operands = ["a, s, z"] + ["b, s, z"] * of_two
    inputs = ", ".join(["t, u", *operands] if sizes_first else [*operands, "t, u"])
    feeds = {"a": _BYTES_OF_ALL, "b": _BYTES_OF_ALL[::-1]} if of_two else {"a": _BYTES_OF_ALL}
    return fault(
        f"{_CONTRIB + operator} | any | other integers: it wraps around, saturates elsewhere, or truncates",
        f"g ({', '.join(f'uint8[N, C, 4, 4] {name}' for name in feeds)}) => (uint8[M, D, H, W] y) "
        "<float s = {0.05}, uint8 z = {120}, float t = {0.04}, uint8 u = {9}> "
        f"{{ y = {_CONTRIB}{operator} {attributes} ({inputs}) }}",
        applies=lambda *_: True,
        feeds=feeds,
        expected=[_INTEGERS[operator]],
    )


def _requantized(values: np.ndarray) -> np.ndarray:
    integers: np.ndarray = np.clip(np.rint(values / np.float32(0.04)) + 9, 0, 255).astype(np.uint8)
    return integers


_BYTES_OF_ALL = np.random.default_rng(0).permutation(np.arange(0, 256, 2, dtype=np.uint8)).reshape(2, 4, 4, 4)
_A = (_BYTES_OF_ALL.astype(np.float32) - 120) * np.float32(0.05)
_EXPONENTIALS = np.exp(_A)
_INTEGERS = {
    "QLinearSigmoid": _requantized(1 / (1 + 1 / _EXPONENTIALS)),
    "QLinearSoftmax": _requantized(_EXPONENTIALS / _EXPONENTIALS.sum(-1, keepdims=True)),
    "QLinearLeakyRelu": _requantized(np.where(_A < 0, _A * np.float32(0.1), _A)),
    "QLinearAveragePool": _requantized(np.lib.stride_tricks.sliding_window_view(_A, (2, 2), (2, 3)).mean((4, 5))),
    "QLinearAdd": _requantized(_A + _A[::-1]),
    "QLinearMul": _requantized(_A * _A[::-1]),
    "QLinearConcat": _requantized(np.concatenate([_A, _A[::-1]], 1)),
}
ROWS = (
    *_rows(""),
    *_rows(_CONTRIB),
    _of_integers("QLinearSigmoid"),
    _of_integers("QLinearSoftmax", "<axis = -1, opset = 13>"),
    _of_integers("QLinearLeakyRelu", "<alpha = 0.1>"),
    _of_integers("QLinearAveragePool", "<kernel_shape = [2, 2]>"),
    _of_integers("QLinearAdd", of_two=True),
    _of_integers("QLinearMul", of_two=True),
    _of_integers("QLinearConcat", "<axis = 1>", of_two=True, sizes_first=True),
)
