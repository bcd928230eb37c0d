"""What a model declares of its outputs' shapes, beside what it computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import exports
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


@pytest.mark.parametrize("label", ["bert-dynamo18-eager", "bert-torchscript14-eager", "distilbert-tf2onnx13"])
def test_encoders_with_the_sizes_of_an_example_take_any(label: str) -> None:
    model = exports.proto(label)
    for output in model.graph.output:
        for axis, size in zip(output.type.tensor_type.shape.dim, (1, 8), strict=False):
            axis.dim_value = size
    with isorun.Session(model.SerializeToString(), "ort-cpu") as session:
        outputs, shape = session.get_outputs(), session.get_inputs()[0].shape
        assert shape is not None
        assert [output.shape and output.shape[0] for output in outputs] == [shape[0]] * len(outputs)
        (hidden, *_) = session.run(None, exports.given(label))
        assert hidden.shape[:2] == (5, 12)
