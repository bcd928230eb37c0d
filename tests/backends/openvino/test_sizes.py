"""Products of constant weights and a tensor of another size are errors, as on every other backend."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import isorun
import onnx_text
from isorun.errors import BackendFailed

WEIGHTS = np.arange(8, dtype=np.float32)
PRODUCTS = {
    "g (float[a, b] x) => (float[a, c] y) { y = MatMul (x, w) }": ((4, 2), lambda size: (3, size)),
    "g (float[b] x) => (float[c] y) { y = MatMul (x, w) }": ((4, 2), lambda size: (size,)),
    "g (float[a, b] x) => (float[a] y) { y = MatMul (x, w) }": ((4,), lambda size: (3, size)),
    "g (float[d, a, b] x) => (float[d, a, c] y) { y = MatMul (x, w) }": ((2, 4, 1), lambda size: (2, 3, size)),
    "g (float[a, b] x) => (float[a, c] y) { y = Gemm <transB = 1> (x, w) }": ((2, 4), lambda size: (3, size)),
    "g (float[b, a] x) => (float[a, c] y) { y = Gemm <transA = 1> (x, w) }": ((4, 2), lambda size: (size, 3)),
    "g (float[b, a] x) => (float[a, c] y) { t = Transpose (x) y = MatMul (t, w) }": ((4, 2), lambda size: (size, 3)),
    "g (float[a, b, h] x) => (float[a, c] y) { f = Flatten (x) y = Gemm (f, w) }": ((4, 2), lambda size: (3, size, 1)),
    'g (float[a, b] x) => (float[c, a] y) { y = Einsum <equation = "ij,jk->ki"> (x, w) }': (
        (4, 2),
        lambda size: (3, size),
    ),
}


def model_of(text: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    model = onnx_text.graph(text)
    weights = WEIGHTS[: int(np.prod(shape))].reshape(shape)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


@pytest.mark.parametrize("text", PRODUCTS)
def test_weights_fix_the_size_of_what_they_multiply(text: str) -> None:
    shape, shape_of_feed = PRODUCTS[text]
    model = model_of(text, shape)
    right = {"x": np.random.default_rng(0).standard_normal(shape_of_feed(4), np.float32)}
    with isorun.Session(model, "openvino") as session, isorun.Session(model, "reference") as reference:
        expected = reference.run(None, right)
        np.testing.assert_allclose(session.run(None, right), expected, atol=1e-5)
        for size in (1, 3, 5, 8):
            with pytest.raises(BackendFailed):
                session.run(None, {"x": np.ones(shape_of_feed(size), np.float32)})
        np.testing.assert_allclose(session.run(None, right), expected, atol=1e-5)
