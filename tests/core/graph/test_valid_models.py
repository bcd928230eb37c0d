"""Valid models of uncommon forms, which every backend runs or refuses by name."""

import numpy as np
import onnx
import pytest
from onnx import helper

import exports
import isorun

PARSE = onnx.parser.parse_model


def _of(opset: int, text: str) -> onnx.ModelProto:
    return PARSE(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


def _of_another_domain() -> onnx.ModelProto:
    node = helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.5)
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)], ir_version=8)


def _by_the_other_name() -> onnx.ModelProto:
    model = _of(13, "g (float[a, b] x) => (float[c] y) { y = ReduceL1 <axes = [1], keepdims = 0> (x) }")
    model.opset_import[0].domain = "ai.onnx"
    return model


MODELS = {
    "no operator of ONNX's own": (_of_another_domain(), {"x": np.array([0, 1, 2], np.float32)}),
    "ONNX's domain by its other name": (_by_the_other_name(), {"x": np.array([[1, -2], [3, 4]], np.float32)}),
    "an empty axis": (
        _of(18, "g (float[2, 0, 3] x) => (float[2, 1, 3] y) <int64[1] a = {1}> { y = ReduceSum (x, a) }"),
        {"x": np.zeros((2, 0, 3), np.float32)},
    ),
    "a size that a reshape fixes": (
        _of(14, "g (float[a, b] x) => (float[a, 3] y) <int64[2] s = {0, 3}> { y = Reshape (x, s) }"),
        {"x": np.ones((2, 3), np.float32)},
    ),
    "two sizes that a reshape makes of one": (
        _of(14, "g (float[a, b] x) => (float[a, 2, 2] y) <int64[3] s = {0, 2, 2}> { y = Reshape (x, s) }"),
        {"x": np.ones((2, 4), np.float32)},
    ),
    "a single place": (
        _of(13, "g (float[a, b, c] x) => (float y) <int64[3] i = {1, 2, -1}> { y = GatherND (x, i) }"),
        {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4)},
    ),
    "a function in opset 12": (
        PARSE(
            '<ir_version: 10, opset_import: ["" : 12, "f" : 1]> g (float[2, 3] x) => (float[2, 3] y) { y = f.A (x) } '
            '<domain: "f", opset_import: ["" : 12]> A (x) => (y) { y = Relu (x) }'
        ),
        {"x": np.array([[1, -1, 2], [0, 3, -4]], np.float32)},
    ),
    "a vector to 16 bits": (
        _of(21, "g (float[n] x, float s, int16 z) => (int16[n] y) { y = QuantizeLinear (x, s, z) }"),
        {"x": np.ones(3, np.float32), "s": np.array(0.5, np.float32), "z": np.array(3, np.int16)},
    ),
}


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_the_untouched_model(name: str, backend: str) -> None:
    model, feeds = MODELS[name]
    try:
        session = isorun.Session(model, backend)
    except isorun.UnsupportedModel:  # OpenVINO lacks the operator, or functions of this opset
        assert backend == "openvino"
        return
    with session:
        np.testing.assert_array_equal(session.run(None, feeds)[0], exports.run(model, feeds)[0])
