from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from isorun.errors import UnsupportedModel
from isorun.graph.ops import opset

RESIZE = """<ir_version: 10, opset_import: ["" : 21]>
g (float[1, 2, 4, 4] x) => (float[1, 2, 6, 6] y) <float[4] scales = {{1, 1, 1.5, 1.5}}> {{
    y = Resize <{attributes}> (x, , scales)
}}"""


REDUCED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[1, 2, 4, 4] x) => (float[{shape}] y) <int64[2] axes = {{1, -1}}> {{
    y = ReduceMax <{attributes}> ({inputs})
}}"""


def resized(attributes: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(RESIZE.format(attributes=attributes)))


def run(model: ir.Model) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)
    content = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    "attributes", ['mode = "cubic"', 'mode = "linear", antialias = 0, keep_aspect_ratio_policy = "stretch"']
)
def test_a_resize_is_brought_to_an_earlier_opset(attributes: str) -> None:
    model = resized(attributes)
    before = run(model)
    opset.move(model.graph, 17)
    assert model.graph.opset_imports[""] == 17
    np.testing.assert_allclose(run(model), before, atol=1e-6)


@pytest.mark.parametrize(
    "attributes",
    ['mode = "cubic", antialias = 1', 'mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"'],
)
def test_a_resize_that_the_earlier_opset_does_not_have(attributes: str) -> None:
    model = resized(attributes)
    with pytest.raises(UnsupportedModel) as caught:
        opset.move(model.graph, 17)
    assert caught.value.operators == ("Resize",)
    assert model.graph.opset_imports[""] == 21


@pytest.mark.parametrize(
    ("shape", "inputs", "attributes"),
    [
        ("1,1,4,1", "x, axes", "noop_with_empty_axes = 1"),
        ("1,4", "x, axes", "keepdims = 0"),
        ("1,1,1,1", "x", "noop_with_empty_axes = 0"),
    ],
)
def test_a_reduction_is_brought_to_an_earlier_opset(shape: str, inputs: str, attributes: str) -> None:
    text = REDUCED.format(shape=shape, inputs=inputs, attributes=attributes)
    model = ir.from_proto(onnx.parser.parse_model(text))
    before = run(model)
    opset.move(model.graph, 17)
    onnx.checker.check_model(ir.to_proto(model))
    np.testing.assert_array_equal(run(model), before)


def test_a_reduction_of_nothing_has_no_earlier_form() -> None:
    text = REDUCED.format(shape="1,2,4,4", inputs="x", attributes="noop_with_empty_axes = 1")
    model = ir.from_proto(onnx.parser.parse_model(text))
    with pytest.raises(UnsupportedModel) as caught:
        opset.move(model.graph, 17)
    assert caught.value.operators == ("ReduceMax",)
