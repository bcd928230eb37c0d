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
