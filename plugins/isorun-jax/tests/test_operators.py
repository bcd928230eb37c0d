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
