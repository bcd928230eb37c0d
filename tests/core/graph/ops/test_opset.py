import numpy as np
import onnx
import onnx_ir as ir
import pytest

import exports
from isorun.errors import UnsupportedModel
from isorun.graph.ops import opset

X = "float[1,2,4,4] x"
RESIZED = "g (%s) => (float[1,2,6,6] y) <float[4] scales = {1, 1, 1.5, 1.5}> { y = Resize <%s> (x, , scales) }"
REDUCED = "g (%s) => (float[%s] y) <int64[2] axes = {1, -1}> { y = ReduceMax <%s> (%s) }"


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}'))


def run(model: ir.Model) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)
    return exports.run(model, {"x": x})[0]


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
    parsed = model(text)
    before = run(parsed)
    opset.move(parsed.graph, 17)
    assert parsed.graph.opset_imports[""] == 17
    onnx.checker.check_model(ir.to_proto(parsed))
    np.testing.assert_allclose(run(parsed), before, atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        RESIZED % (X, 'mode = "cubic", antialias = 1'),
        RESIZED % (X, 'mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"'),
        REDUCED % (X, "1,2,4,4", "noop_with_empty_axes = 1", "x"),
    ],
)
def test_an_operator_that_the_earlier_opset_does_not_have(text: str) -> None:
    parsed = model(text)
    with pytest.raises(UnsupportedModel) as caught:
        opset.move(parsed.graph, 17)
    assert caught.value.operators == ("Resize" if "Resize" in text else "ReduceMax",)
    assert parsed.graph.opset_imports[""] == 21


SCATTERED = """<ir_version: 10, opset_import: ["" : {opset}]>
g (float[4] x) => (float[4] y) <int64[2, 1] at = {{1, 3}}, float[2] rows = {{5, 6}}> {{
    y = ScatterND {attributes} (x, at, rows)
}}"""


def scattered(opset_version: int, attributes: str = "") -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(SCATTERED.format(opset=opset_version, attributes=attributes)))


@pytest.mark.parametrize(
    ("since", "target", "attributes"),
    [(14, 17, ""), (18, 17, '<reduction = "none">'), (16, 14, '<reduction = "none">')],
)
def test_a_scatter_without_a_reduction_is_the_same_in_every_opset(since: int, target: int, attributes: str) -> None:
    model = scattered(since, attributes)
    opset.move(model.graph, target)
    onnx.checker.check_model(ir.to_proto(model))
    assert exports.run(model, {"x": np.zeros(4, np.float32)})[0].tolist() == [0, 5, 0, 6]


def test_a_scatter_with_a_reduction_may_have_no_earlier_form() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        opset.move(scattered(18, '<reduction = "max">').graph, 17)
    assert caught.value.operators == ("ScatterND",)
