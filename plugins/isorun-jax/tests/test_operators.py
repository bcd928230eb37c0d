"""Operators of early opsets, which mean something else there."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import isorun

pytest.importorskip("jax", reason="the package jax is not installed")
X = np.arange(8, dtype=np.float32).reshape(2, 2, 2)


def model(opset: int, body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2, 2, 2] x) => (float[a, b, c] y) {{ {body} }}'
    )


@pytest.mark.parametrize("opset", [1, 11, 12])
@pytest.mark.parametrize(
    ("attributes", "columns"), [("", 4), ("<axis = 0>", 8), ("<axis = 1>", 4), ("<axis = 2>", 2), ("<axis = -1>", 2)]
)
def test_softmax_before_opset_13_is_that_of_a_matrix(opset: int, attributes: str, columns: int) -> None:
    rows = np.exp(X.reshape(-1, columns))
    with isorun.Session(model(opset, f"y = Softmax {attributes} (x)"), "jax") as session:
        (result,) = session.run(None, {"x": X})
    np.testing.assert_allclose(result, (rows / rows.sum(1, keepdims=True)).reshape(X.shape), rtol=1e-5)


@pytest.mark.parametrize(
    ("opset", "body", "operator"),
    [
        (11, "y = LogSoftmax (x)", "LogSoftmax"),
        (11, "y = Hardmax (x)", "Hardmax"),
        (1, "y = Concat (x, x)", "Concat"),
        (6, "y = Add <broadcast = 1> (x, x)", "Add"),
    ],
)
def test_refuses_other_operators_of_early_opsets(opset: int, body: str, operator: str) -> None:
    with pytest.raises(isorun.UnsupportedModel, match=operator):
        isorun.Session(model(opset, body), "jax")


INT = np.iinfo(np.int32).min
K = "k = Constant <value_ints = [2]> ()"


@pytest.mark.parametrize(
    ("body", "dtype", "left", "right", "expected"),
    [
        ("y = Div (a, b)", "int32", [INT, INT, 5, -7], [2, -3, INT, 2], [INT // 2, 715827882, 0, -3]),
        ("y = Pow (a, b)", "int32", [5, -1, 1, -3], [-3, -1, -4, 3], [0, -1, 1, -27]),
        ("c = Cast <to = 11> (b) y = Pow (a, c)", "float", [2, 3, 4, 5], [2, 2, 0.5, -1], [4, 9, 2, 0.2]),
        ("c = Cast <to = 1> (b) y = Pow (a, c)", "int64", [2, 3, 4, 7], [2, 2, 0, 3], [4, 9, 1, 343]),
        (f"{K} y, i = TopK (a, k)", "uint8", [0, 9, 255, 9], [0] * 4, [255, 9]),
        (f"{K} y, i = TopK <sorted = 1> (a, k)", "float", [3, 7, 9, 7], [0] * 4, [9, 7]),
        (f"{K} y, i = TopK <largest = 0> (a, k)", "int8", [3, -128, 127, -1], [0] * 4, [-128, -1]),
        (f"{K} y, i = TopK (a, k)", "int8", [3, -128, 127, -1], [0] * 4, [127, 3]),
        (f"{K} y, i = TopK (a, k)", "float", [3, np.nan, np.inf, -1], [0] * 4, [np.nan, np.inf]),
        (f"{K} v, i = TopK (a, k) y = Cast <to = 1> (i)", "float", [3, 7, 7, 7], [0] * 4, [1, 2]),
    ],
)
def test_extreme_values(body: str, dtype: str, left: list[float], right: list[float], expected: list[float]) -> None:
    result = "float" if "Cast <to = 1> (i)" in body else dtype
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({dtype}[4] a, {dtype}[4] b) => ({result}[n] y) {{ {body} }}'
    feeds = {"a": np.array(left, dtype.replace("float", "float32"))}
    feeds["b"] = np.array(right, feeds["a"].dtype)
    with isorun.Session(onnx.parser.parse_model(text), "jax") as session:
        (values,) = session.run(None, feeds)
    np.testing.assert_allclose(values, np.array(expected, values.dtype), rtol=1e-6)


def test_layer_normalization_in_fp16_computes_in_fp32() -> None:
    x = (np.random.default_rng(0).standard_normal((2, 2, 2)) * 2e4).astype(np.float16)
    text = "w = Constant <value_floats = [1.0, 1.0]> () h = CastLike (w, x) y = LayerNormalization <axis = 2> (x, h)"
    half = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float16[2, 2, 2] x) => (float16[2, 2, 2] y) {{ {text} }}'
    )
    with isorun.Session(half, "jax") as session:
        (result,) = session.run(None, {"x": x})
    np.testing.assert_allclose(result, np.sign(x.astype(np.float32) - x.mean(2, np.float32, keepdims=True)), rtol=1e-2)


def test_slice_backwards_from_before_the_start() -> None:
    bounds = {"s": -9, "e": -99, "z": 0, "d": -1}
    constants = " ".join(f"{name} = Constant <value_ints = [{value}]> ()" for name, value in bounds.items())
    with isorun.Session(model(17, f"{constants} y = Slice (x, s, e, z, d)"), "jax") as session:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], X[:1])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("c = Cast <to = 17> (x) y = Cast <to = 1> (c)", "Cast to FLOAT8E4M3FN"),
        ("i = ArgMax <select_last_index = 1> (x) y = Cast <to = 1> (i)", "ArgMax with select_last_index"),
        ("c = Cast <to = 8> (x) y = Cast <to = 1> (c)", "Cast to STRING"),
        (
            "w = Constant <value_floats = [1.0, 1.0]> () n, y = LayerNormalization (x, w)",
            "LayerNormalization with 2 outputs",
        ),
        ("c = Cast <to = 7> (x) r = Reshape (c, s) y = Reshape (x, r)", "values of inputs"),
    ],
)
def test_refuses_what_it_would_compute_otherwise(body: str, reason: str) -> None:
    shape = "s = Constant <value_ints = [-1]> ()"
    with pytest.raises(isorun.UnsupportedModel, match=reason):
        isorun.Session(model(19, f"{shape} {body}"), "jax")
