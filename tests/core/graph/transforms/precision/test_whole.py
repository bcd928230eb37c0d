"""Models whose weights have 16 bits, in fp32."""

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import exports
import isorun
from isorun.graph.transforms.precision import whole
from isorun.parity import DEFAULT_TOLERANCES, compare

HALVES = exports.archive("half")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("label", HALVES)
def test_fp32_is_as_exact_as_of_a_model_in_fp32(label: str) -> None:
    """By itself, ONNX Runtime rounds every result to 16 bits, and differed by 1e-3.

    The root of 2 in 16 bits, in some models' GELU, is off by 1e-4; the fused one has all its digits.
    """
    tolerance = replace(DEFAULT_TOLERANCES["fp32"], max_rel=3e-4, rms=5e-5)
    feeds = exports.given(label)
    with isorun.Session(HALVES[label], "reference", precision="fp64") as session:
        exact = session.run(None, feeds)
    for backend in ("ort-cpu", "openvino"):
        with isorun.Session(HALVES[label], backend) as session:
            computed = session.run(None, feeds)
            assert session.provenance.precision == "fp32"
            mask, names = session.model_info.attended(feeds), [output.name for output in session.get_outputs()]
        results, expected = (dict(zip(names, values, strict=True)) for values in (computed, exact))
        parity = compare(results, expected, mask, tolerance)
        assert not parity.reasons


@pytest.mark.filterwarnings("ignore::isorun.compilation.calibration.CalibrationWarning")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("label", HALVES)
def test_int8_is_that_of_the_model_in_fp32(label: str) -> None:
    """Products of 8 bits, and the rest in fp32: in 16 bits, runtimes would round it a second time."""
    feeds = exports.given(label)
    with isorun.Session(HALVES[label], "ort-cpu") as session:
        exact, outputs = session.run(None, feeds), session.get_outputs()
    with isorun.Session(HALVES[label], "ort-cpu", precision="int8") as session:
        computed = session.run(None, feeds)
        assert session.provenance.precision == "fp32+int8"
        assert [output.type for output in session.get_outputs()] == [output.type for output in outputs]
    for expected, result in zip(exact, computed, strict=True):
        a, b = (array.astype(np.float64).ravel() for array in (expected, result))
        assert 0.99 < a @ b / np.sqrt((a @ a) * (b @ b)) < 1 - 1e-7


def model_of(text: str) -> onnx.ModelProto:
    """A model; ``w`` is a weight in fp16 if something reads it."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18, "mine" : 1]> {text}')
    if any("w" in node.input for node in model.graph.node) and not model.graph.initializer:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.1, np.float16), "w"))
    return model


BRANCHES = """g (float16[N] x, bool yes) => (float16[N] y) {
    s = Mul (x, w)
    y = If (yes) <
        then_branch = then () => (float16[N] a) {
            c = Constant <value_float = 0.3> ()  h = Cast <to = 10> (c)  a = Add (s, h)
        },
        else_branch = other () => (float16[N] b) { d = Cast <to = 10> (s)  b = Neg (d) }>
}"""


@pytest.mark.parametrize("yes", [True, False])
def test_inputs_and_outputs_keep_their_types(yes: bool) -> None:
    values = np.linspace(-1, 1, 7).astype(np.float16)
    with isorun.Session(model_of(BRANCHES), "ort-cpu") as session:
        (result,) = session.run(None, {"x": values, "yes": np.array(yes)})
        assert session.provenance.details["graph"]["fp32"]["converted"] > 0
    scaled = values.astype(np.float32) * np.float32(np.float16(0.1))
    expected = scaled + np.float32(0.3) if yes else -scaled
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, expected.astype(np.float16))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g (float16[N] x) => (float16[N] y) { y = Relu (x) }", False),
        ("g (float[N] x) => (float[N] y) <float w = {2}> { y = Mul (x, w) }", False),
        ("g (float16[N] x, float16[1] w = {2}) => (float16[N] y) { y = Mul (x, w) }", False),
        ("g (float16[N] x) => (float16[N] y) { y = Mul (x, w) }", True),
        ("g (float16[N] x) => (float16[N] y) { z = Mul (x, w) y = mine.Other (z) }", False),
        ("g (float16[N] x) => (seq(float16[N]) y) { z = Mul (x, w) y = SequenceConstruct (z, x) }", False),
        ("g (float16[N] x) => (int16[N] y) { z = Mul (x, w) y = BitCast <to = 5> (z) }", False),
    ],
)
def test_what_is_converted(text: str, expected: bool) -> None:
    assert whole.has_halves(ir.serde.deserialize_model(model_of(text))) == expected


def test_types_of_a_converted_graph() -> None:
    text = """g (float16[N] x) => (float16[N] y, float16[N] x2, float16[4] v) {
        r = RandomUniformLike <dtype = 10> (x)  z = Mul (r, w)  l = CastLike (z, w)  y = Identity (l)
        n = Constant <value_int = 4> ()  h = HannWindow <output_datatype = 10> (n)  v = Mul (h, w)
        x2 = Identity (x)
    }"""
    model = ir.serde.deserialize_model(model_of(text))
    whole.convert(model)
    names = {value.name: value.dtype for value in (*model.graph.inputs, *model.graph.outputs)}
    assert names == dict.fromkeys(("x", "y", "x2", "v"), ir.DataType.FLOAT16)
    inner = [value.dtype for node in model.graph if node.op_type in ("Mul", "CastLike") for value in node.outputs]
    assert inner == [ir.DataType.FLOAT] * 3
    onnx.checker.check_model(ir.serde.serialize_model(model), full_check=True)
