from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from isorun.errors import UnsupportedModel
from isorun.graph.ops import opset

X = "float[1,2,4,4] x"
RESIZED = "g (%s) => (float[1,2,6,6] y) <float[4] scales = {1, 1, 1.5, 1.5}> { y = Resize <%s> (x, , scales) }"
REDUCED = "g (%s) => (float[%s] y) <int64[2] axes = {1, -1}> { y = ReduceMax <%s> (%s) }"


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}'))


def run(model: ir.Model) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)
    content = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize(
    "text",
    [
        RESIZED % (X, 'mode = "cubic"'),
        RESIZED % (X, 'mode = "linear", antialias = 0, keep_aspect_ratio_policy = "stretch"'),
        REDUCED % (X, "1,1,4,1", "noop_with_empty_axes = 1", "x, axes"),
        REDUCED % (X, "1,4", "keepdims = 0", "x, axes"),
        REDUCED % (X, "1,1,1,1", "noop_with_empty_axes = 0", "x"),
    ],
)
def test_an_operator_is_brought_to_an_earlier_opset(text: str) -> None:
    made = model(text)
    before = run(made)
    opset.move(made.graph, 17)
    assert made.graph.opset_imports[""] == 17
    onnx.checker.check_model(ir.to_proto(made))
    np.testing.assert_allclose(run(made), before, atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        RESIZED % (X, 'mode = "cubic", antialias = 1'),
        RESIZED % (X, 'mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"'),
        REDUCED % (X, "1,2,4,4", "noop_with_empty_axes = 1", "x"),
    ],
)
def test_an_operator_that_the_earlier_opset_does_not_have(text: str) -> None:
    made = model(text)
    with pytest.raises(UnsupportedModel) as caught:
        opset.move(made.graph, 17)
    assert caught.value.operators == ("Resize" if "Resize" in text else "ReduceMax",)
    assert made.graph.opset_imports[""] == 21
