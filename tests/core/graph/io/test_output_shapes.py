"""What a model declares of its outputs' shapes, beside what it computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import isorun


def model_of(declared: str, body: str) -> bytes:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[batch, width] x) => ({declared} y) {{ {body} }}'
    return onnx.parser.parse_model(text).SerializeToString()


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize(
    ("declared", "body", "shape"),
    [
        ("float[1, 3]", "y = Neg (x)", ("batch", "width")),
        ("float[1]", "y = Neg (x)", ("batch", "width")),
        ("float[batch, 7]", "y = ReduceMean <axes = [1]> (x)", ("batch", 1)),
        ("float[rows, width]", "y = Neg (x)", ("rows", "width")),
        ("float[batch, 3]", "s = Shape (x) z = Reshape (x, s) n = NonZero (z) y = Cast <to = 1> (n)", ("batch", 3)),
    ],
)
def test_what_exporters_write_of_their_example_is_corrected(
    backend: str, declared: str, body: str, shape: tuple[object, ...]
) -> None:
    feeds = {"x": np.ones((2, 3), np.float32)}
    with isorun.Session(model_of(declared, body), backend) as session:
        assert session.get_outputs()[0].shape == shape
        if shape != ("batch", 3):
            (result,) = session.run(None, feeds)
            assert result.shape == (2, 1 if shape[1] == 1 else 3)


def test_what_cannot_be_inferred_is_in_doubt() -> None:
    body = "s = Shape (x) z = Reshape (x, s) n = NonZero (z) y = Cast <to = 1> (n)"
    feeds = {"x": np.ones((2, 3), np.float32)}
    with (
        isorun.Session(model_of("float[2, 3]", body), "ort-cpu") as session,
        pytest.raises(isorun.BackendFailed, match="the model declares it wrongly"),
    ):
        session.run(None, feeds)
