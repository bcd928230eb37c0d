"""Models with activations that are rounded to integers and back, as quantizers write them."""

from typing import Any

import numpy as np
import onnx
import openvino
import pytest

import exports
import isorun
from isorun.plugin import has_vnni

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
VALUES = np.random.default_rng(0).normal(size=(3, 6, 8)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).integers(-127, 128, (8, 8)).astype(np.int8)
SCALES = np.linspace(0.005, 0.05, 8, dtype=np.float32)
KERNEL = np.random.default_rng(2).integers(-127, 128, (6, 6, 2)).astype(np.int8)
LEAST = np.finfo(np.float32).min
MASK = np.where(np.random.default_rng(3).random((3, 1, 8)) < 0.5, LEAST, 0).astype(np.float32)
MASK[1] = LEAST

ROUNDED = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) "
PRODUCT = ROUNDED + "v = DequantizeLinear (w, ws) p = MatMul (d, v) "
CONVOLUTION = ROUNDED + "v = DequantizeLinear (k, ws) p = Conv (d, v) "
GRAPHS = {
    "a product": PRODUCT + "y = Add (p, b)",
    "a padded value": ROUNDED + "y = Pad (d, pads, b)",
    "scores with a mask": ROUNDED + "m = Mul (d, b) a = Add (m, mask) n = Softmax (a) y = MatMul (n, square)",
    "joined values, rounded twice": (
        ROUNDED + "j = Concat <axis = 2> (d, d) r = QuantizeLinear (j, s2, z) e = DequantizeLinear (r, s2, z) "
        "t = QuantizeLinear (e, s, z) y = DequantizeLinear (t, s, z)"
    ),
    "one row of a product": PRODUCT + "y = Gather <axis = 1> (p, first)",
    "columns of a product": PRODUCT + "y = Gather <axis = 2> (p, some)",
    "the maximum of a pool": PRODUCT + "y = MaxPool <kernel_shape = [2]> (p)",
    "a product times negative numbers": PRODUCT + "y = Mul (p, turn)",
    "negative numbers before rounding": (
        "t = Mul (x, turn) q = QuantizeLinear (t, s, z) d = DequantizeLinear (q, s, z) "
        "v = DequantizeLinear (w, ws) y = MatMul (d, v)"
    ),
    "a convolution times itself": CONVOLUTION + "y = Mul (p, p)",
    "the shape of a convolution": CONVOLUTION + "n = Shape (p) c = Cast <to = 1> (n) y = Reshape (c, flat)",
    "16 bits": (
        "q = QuantizeLinear (x, s, wide) d = DequantizeLinear (q, s, wide) v = DequantizeLinear (w, ws) "
        "y = MatMul (d, v)"
    ),
    "16 bits of an axis": (
        "q = QuantizeLinear <axis = 1> (x, rows, wides) d = DequantizeLinear <axis = 1> (q, rows, wides) "
        "y = Identity (d)"
    ),
    "16 bits of the other domain": (
        "q = com.microsoft.QuantizeLinear (x, s, wide) d = com.microsoft.DequantizeLinear (q, s, wide) y = Relu (d)"
    ),
    "a great scale": "q = QuantizeLinear (x, great, z) d = DequantizeLinear (q, great, z) y = Abs (d)",
    "a zero point times a scale that overflow": (
        "h = Mul (x, great) q = QuantizeLinear (h, greatest, z) d = DequantizeLinear (q, greatest, z) y = Neg (d)"
    ),
    "weights with scales of rows": ROUNDED + "v = DequantizeLinear <axis = 0> (w, many) y = MatMul (d, v)",
    "transposed weights with scales of columns": (
        ROUNDED + "v = DequantizeLinear <axis = 1> (w, many) u = Transpose (v) y = MatMul (d, u)"
    ),
    "another zero point": "q = QuantizeLinear (x, s, wide) d = DequantizeLinear (q, s, nil) y = Neg (d)",
}


def model_of(graph: str) -> onnx.ModelProto:
    rows = ", ".join(["0.0001"] * 6)
    wides = ", ".join(["30000"] * 6)
    text = (
        f"{HEADER} g (float[N, 6, 8] x) => (float[A, B, C] y) <float s = {{0.03}}, uint8 z = {{120}}, "
        f"uint16 wide = {{100}}, float s2 = {{0.02}}, float ws = {{0.01}}, float b = {{1.5}}, float great = {{1e36}}, "
        f"float greatest = {{3e36}}, uint16 nil = {{0}}, "
        f"int64[1] first = {{0}}, int64[3] flat = {{1, 1, -1}}, int64[2] some = {{2, 5}}, "
        f"int64[6] pads = {{0, 1, 0, 0, 0, 0}}, "
        f"float[1, 6, 1] turn = {{-1, 0.5, -0.25, 1, -2, 3}}, float[6] rows = {{{rows}}}, "
        f"uint16[6] wides = {{{wides}}}> {{ {graph} }}"
    )
    model = onnx.parser.parse_model(text)
    arrays = {"w": WEIGHTS, "many": SCALES, "k": KERNEL, "mask": MASK, "square": np.eye(8, dtype=np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def plainly(model: onnx.ModelProto) -> np.ndarray:
    """What ONNX Runtime answers to the graph as it is."""
    return exports.run(model, {"x": VALUES}, optimized=False)[0]


@pytest.mark.parametrize("label", GRAPHS)
def test_computes_what_the_graph_says(label: str) -> None:
    """The bare runtime crashes in some, and is off by more than a step of the integers in the others (2026.4.1)."""
    model = model_of(GRAPHS[label])
    expected = plainly(model)
    with isorun.Session(model.SerializeToString(), "openvino") as session:
        (result,) = session.run(None, {"x": VALUES})
        precision = session.provenance.precision
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert precision == ("int8" if label == "a product" and has_vnni() else "fp32")


def test_of_an_opset_in_which_operators_have_no_inputs_for_limits() -> None:
    """What quantizers make of a model of opset 10."""
    text = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = Identity (d)"
    model = onnx.parser.parse_model(
        f"""<ir_version: 5, opset_import: ["" : 10]>
        g (float[N, 6, 8] x) => (float[N, 6, 8] y) <float s = {{0.01}}, uint8 z = {{0}}> {{ {text} }}"""
    )
    with isorun.Session(model.SerializeToString(), "openvino") as session:
        (result,) = session.run(None, {"x": VALUES})
    np.testing.assert_allclose(result, plainly(model), rtol=1e-5)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(("rank", "axis"), [(rank, axis) for rank in (2, 3, 4) for axis in range(rank)])
def test_scales_of_an_axis(rank: int, axis: int, size: int) -> None:
    """With a shape that the model does not state, OpenVINO scales along another axis."""
    random = np.random.default_rng(0)
    scales = ", ".join(str(0.05 * (index + 1)) for index in range(size))
    zeros = ", ".join(str(3 * index) for index in range(size))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        g (float[{", ".join("ABCD"[:rank])}] x) => (float[{", ".join("ABCD"[:rank])}] y)
        <float[{size}] s = {{{scales}}}, int8[{size}] z = {{{zeros}}}> {{
          q = QuantizeLinear <axis = {axis}> (x, s, z) y = DequantizeLinear <axis = {axis}> (q, s, z) }}"""
    )
    values = random.normal(size=[size if index == axis else 4 for index in range(rank)]).astype(np.float32)
    with isorun.Session(model.SerializeToString(), "openvino") as session:
        np.testing.assert_allclose(session.run(None, {"x": values}), exports.run(model, {"x": values}), atol=1e-5)


@pytest.mark.parametrize(
    "factors", ["a = Mul (x, w)", "a = Div (x, w)", "a = BatchNormalization (x, w, none, none, unit)"]
)
@pytest.mark.parametrize("result", ["y = Identity (d)", "v = DequantizeLinear (w8, ws) y = MatMul (d, v)"])
def test_rounds_columns_times_negative_factors(factors: str, result: str) -> None:
    """In rows of a number that the model does not state, OpenVINO turns the limits of such columns around."""
    model = onnx.parser.parse_model(
        f"""{HEADER} g (float[N, 4] x) => (float[N, C] y)
        <float[4] w = {{1.5, 2, -1, 0.3}}, float[4] none = {{0, 0, 0, 0}}, float[4] unit = {{1, 1, 1, 1}},
         float s = {{0.1}}, uint8 z = {{100}}, int8[4, 2] w8 = {{10, 20, 30, 40, 50, 60, 70, 80}}, float ws = {{0.02}}>
        {{ {factors} q = QuantizeLinear (a, s, z) d = DequantizeLinear (q, s, z) {result} }}"""
    )
    values = VALUES[0, :3, :4]
    with isorun.Session(model.SerializeToString(), "openvino") as session:
        np.testing.assert_allclose(session.run(None, {"x": values}), exports.run(model, {"x": values}), atol=1e-4)


def weights_alone(bits: str, block: int) -> onnx.ModelProto:
    """A product with rounded weights of 64 rows; a scale for each block of them, or one for all."""
    integers = np.random.default_rng(4).integers(-7, 8, (64, 64))
    attributes = f"<axis = 0, block_size = {block}>" if block else ""
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[N, 64] x) => (float[N, 64] y) {{ v = DequantizeLinear {attributes} (w, s) "
        "y = MatMul (x, v) }"
    )
    sizes = (64 // block, 64) if block else ()
    kind = onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, bits))
    model.graph.initializer.extend(
        [
            onnx.numpy_helper.from_array(integers.astype(kind), "w"),
            onnx.numpy_helper.from_array(np.full(sizes, 0.25, np.float32), "s"),
        ]
    )
    return model


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("bits", ["INT8", "INT4"])
def test_rounded_weights_leave_activations_as_they_are(bits: str, block: int, backend: str) -> None:
    """Both runtimes round them to 8 bits by default, whatever precision is set."""
    model = weights_alone(bits, block)
    values = np.random.default_rng(5).normal(size=(7, 64)).astype(np.float32)
    integers = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float32)
    with isorun.Session(model.SerializeToString(), backend) as session:
        (result,) = session.run(None, {"x": values})
        assert session.provenance.precision == "fp32"
    np.testing.assert_allclose(result, values @ (integers * 0.25), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("in_bf16", [False, True])
@pytest.mark.parametrize("bits", ["INT8", "INT4"])
def test_int8_rounds_activations_of_rounded_weights_or_is_rejected(
    bits: str, in_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO rounds them in fp32 alone, and its layers report the integers of the weights in bf16 as well."""
    monkeypatch.setattr("isorun_backends.openvino.devices.multiplies_bf16_faster", lambda: in_bf16)
    model = weights_alone(bits, 32)
    values = np.random.default_rng(5).normal(size=(7, 64)).astype(np.float32)
    blocks = values.reshape(7, 2, 32)
    steps = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    rounded = (np.rint(blocks / steps) * steps).reshape(values.shape)
    if in_bf16 and "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        with pytest.raises(isorun.BackendUnavailable, match="runs in bf16 instead of int8"):
            isorun.Session(model.SerializeToString(), "openvino", precision="int8")
        return
    with isorun.Session(model.SerializeToString(), "openvino", precision="int8") as session:
        (result,) = session.run(None, {"x": values})
        assert session.provenance.precision == "int8"
    integers = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float32)
    if has_vnni():
        np.testing.assert_allclose(result, rounded @ (integers * 0.25), rtol=1e-5, atol=1e-3)


def product_of_few_bits(level: int) -> Any:
    attributes = f"K = 32, N = 8, bits = 4, block_size = 32, accuracy_level = {level}"
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[N, 32] x) => (float[N, 8] y) {{ y = com.microsoft.MatMulNBits <{attributes}> (x, w, s) }}"
    )
    weights = np.random.default_rng(6).integers(0, 256, (8, 1, 16)).astype(np.uint8)
    arrays = {"w": weights, "s": np.full((8, 1), 0.1, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model.SerializeToString()


@pytest.mark.parametrize("requested", ["fp32", "int8"])
@pytest.mark.parametrize(("level", "precision"), [(0, "fp32"), (4, "int8")])
def test_reports_what_a_product_of_few_bits_multiplies(level: int, precision: str, requested: str) -> None:
    model = product_of_few_bits(level)
    if (requested, precision) == ("int8", "fp32"):
        with pytest.raises(isorun.BackendUnavailable, match="runs in fp32 instead of int8"):
            isorun.Session(model, "ort-cpu", precision="int8")
        return
    with isorun.Session(model, "ort-cpu", precision=requested) as session:
        session.run(None, {"x": np.ones((2, 32), np.float32)})
        assert session.provenance.precision == precision


@pytest.mark.parametrize(
    ("operator", "weights", "scales"),
    [
        ("MatMulBnb4 <K = 32, N = 8, block_size = 32, quant_type = 1> (x, w, s)", (128,), (8,)),
        ("GatherBlockQuantized <block_size = 16, bits = 8> (w, i, s)", (8, 16), (8, 1)),
    ],
)
def test_weights_of_few_bits_alone_are_no_int8(operator: str, weights: tuple[int], scales: tuple[int]) -> None:
    model = onnx.parser.parse_model(
        f"{HEADER} g (float[N, 32] x, int64[M] i) => (float[a, b] y) {{ y = com.microsoft.{operator} }}"
    )
    arrays = {"w": np.ones(weights, np.uint8), "s": np.ones(scales, np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    with pytest.raises(isorun.BackendUnavailable, match="runs in fp32 instead of int8"):
        isorun.Session(model.SerializeToString(), "ort-cpu", precision="int8")
