"""What a model declares of its outputs' shapes, beside what it computes."""

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


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("declared", ["float[2, 3]", "float[batch, width]", "float[batch]"])
@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("s = Shape (x) z = Reshape (x, s) n = NonZero (z) y = Cast <to = 1> (n)", (2, 6)),
        ("keep = Constant <value = bool[2] {1, 0}> () y = Compress <axis = 0> (x, keep)", (1, 3)),
        ("y = Concat <axis = 0> (x, x)", (4, 3)),
    ],
)
def test_sizes_that_depend_on_values_may_be_those_of_an_example(
    backend: str, declared: str, body: str, shape: tuple[int, ...]
) -> None:
    with isorun.Session(model_of(declared, body), backend) as session:
        (result,) = session.run(None, {"x": np.ones((2, 3), np.float32)})
        assert result.shape == shape


@pytest.mark.sampled(2)
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


@pytest.mark.parametrize(
    ("declared", "body", "shapes"),
    [
        ("float[1, width]", "a = Shape (x) b = Neg (a) c = Neg (b) y = Reshape (x, c)", {1: (1, 3), 2: (2, 3)}),
        ("float[1]", "a = Shape (x) b = Concat <axis = 0> (one, a) y = Reshape (x, b)", {1: (1, 1, 3), 2: (1, 2, 3)}),
        ("float", "a = ReduceMean <axes = [1]> (x) y = Squeeze (a)", {1: (), 2: (2,)}),
        ("float[batch]", "y = Squeeze (x)", {1: (3,), 2: (2, 3)}),
        ("float[batch, width]", "y = Squeeze (x)", {1: (3,), 2: (2, 3)}),
    ],
)
def test_what_inference_does_not_know_is_computed(declared: str, body: str, shapes: dict[int, tuple[int, ...]]) -> None:
    model = onnx.load_from_string(model_of(declared, body))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    with isorun.Session(model, "ort-cpu") as session:
        for batch, shape in shapes.items():
            assert session.run(None, {"x": np.ones((batch, 3), np.float32)})[0].shape == shape
