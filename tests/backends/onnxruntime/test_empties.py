"""Tensors without elements, of which ONNX Runtime ends the process."""

import numpy as np
import pytest

import isorun
import onnx_text


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("bhid,bhjd->bhij", (0, 2, 3, 4), (0, 2, 5, 4)),
        ("bhid,bhjd->bhij", (2, 2, 3, 0), (2, 2, 5, 0)),
        ("bhid,bhjd->bhij", (1, 2, 3, 4), (2, 2, 5, 4)),
        ("bhld,lrd->bhlr", (2, 4, 0, 8), (0, 0, 8)),
        ("a...b,b...->a...", (2, 0, 5, 4), (4, 1, 5)),
        ("...id , ...jd", (0, 3, 2), (0, 4, 2)),
        ("ij,ij->", (0, 2), (0, 2)),
    ],
)
def test_einsum_of_factors_without_elements(equation: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    feeds = {"x": np.ones(left, np.float32), "w": np.ones(right, np.float32)}
    expected = np.einsum(equation, *feeds.values())
    x, w, y = (
        ", ".join(f"{name}{axis}" for axis in range(rank))
        for name, rank in (("a", len(left)), ("b", len(right)), ("c", expected.ndim))
    )
    model = onnx_text.graph(
        f'g (float[{x}] x, float[{w}] w) => (float[{y}] y) {{ y = Einsum <equation = "{equation}"> (x, w) }}'
    )
    with isorun.Session(model, "ort-cpu") as session:
        np.testing.assert_array_equal(session.run(None, feeds)[0], expected, strict=True)


@pytest.mark.parametrize("shape", [(2, 2, 3), (2, 2, 0), (0, 2, 3)])
def test_instance_normalization_of_an_image_without_elements(shape: tuple[int, ...]) -> None:
    model = onnx_text.graph(
        "g (float[a, 2, b] x) => (float[a, 2, b] y) <float[2] s = {1, 2}> "
        "{ n = Neg (x) y = InstanceNormalization <epsilon = 0.25> (n, s, s) }"
    )
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    expected = -x
    if x.size:
        expected = (x.mean(2, keepdims=True) - x) / np.sqrt(x.var(2, keepdims=True) + 0.25)
    with isorun.Session(model, "ort-cpu") as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected * [[1], [2]] + [[1], [2]], atol=1e-5)
