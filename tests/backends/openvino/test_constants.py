"""Constants, and what OpenVINO computes from them when it loads a model."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import isorun


def session(body: str, constants: str, opset: int = 18) -> isorun.Session:
    """A model whose constants are stored as exporters store them."""
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[n] x) => (float[m] y) <{constants}> {{ {body} }}'
    model = onnx.parser.parse_model(text)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    return isorun.Session(model, "openvino")


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "float16", "double"])
def test_absolute_values_of_converted_constants(kind: str) -> None:
    number = onnx.TensorProto.DataType.Value(kind.upper())
    with session(f"c = Cast <to = {number}> (e) a = Abs (c) y = Cast <to = 1> (a)", "float[2] e = {-3, 2}") as opened:
        assert opened.run(None, {"x": np.ones(1, np.float32)})[0].tolist() == [3, 2]


@pytest.mark.parametrize("body", ["y = Abs (x)", "y = Abs (e)", "d = Concat <axis = 0> (x, e) y = Abs (d)"])
def test_other_absolute_values_are_left_to_openvino(body: str) -> None:
    with session(body, "float[2] e = {-3, 2}") as opened:
        assert "worked_around" not in opened.provenance.details.get("graph", {})


@pytest.mark.parametrize(
    "body",
    [
        "y = ReduceSum <keepdims = 0, noop_with_empty_axes = 1> (x, axes)",
        "d = Concat <axis = 0> (x, none) y = Identity (d)",
        "s = ReduceMax <keepdims = 0> (x) z = ConstantOfShape (axes) y = Add (z, x)",
    ],
)
def test_constants_without_elements_that_are_shapes_axes_or_parts(body: str) -> None:
    with session(body, "int64[0] axes = {}, float[0] none = {}") as opened:
        assert opened.run(None, {"x": np.array([-1, 2], np.float32)})[0].tolist() == [-1, 2]


@pytest.mark.parametrize("body", ["y = Max (x, none)", "s = Shape (none) y = Cast <to = 1> (s)"])
def test_refuses_other_constants_without_elements(body: str) -> None:
    with pytest.raises(isorun.UnsupportedModel, match=r"'none'.*a scalar of 0"):
        session(body, "float[0] none = {}")


def test_refuses_uint32_beyond_32_bits_with_a_sign() -> None:
    with pytest.raises(isorun.UnsupportedModel, match=r"'c'.*uint32"):
        session("d = Identity (c) y = Cast <to = 1> (d)", "uint32[1] c = {4294967295}")


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64"])
def test_quotients_of_negative_constants(kind: str) -> None:
    constants = f"{kind}[4] e = {{-7, 7, -7, 7}}, {kind}[4] d = {{2, -2, -2, 2}}"
    with session("q = Div (e, d) y = Cast <to = 1> (q)", constants) as opened:
        assert opened.run(None, {"x": np.ones(1, np.float32)})[0].tolist() == [-3, -3, 3, 3]


def test_quotients_of_sizes_are_left_to_openvino() -> None:
    body = "s = Shape (x) l = Gather (s, i) t = Mul (l, two) q = Div (t, two) y = Cast <to = 1> (q)"
    with session(body, "int64[1] i = {-1}, int64[1] two = {2}") as opened:
        assert "worked_around" not in opened.provenance.details.get("graph", {})
