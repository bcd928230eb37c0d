"""Nodes that end a process in ONNX's shape inference are rejected by name."""

from collections.abc import Callable

import onnx
import onnx.parser
import pytest

import isorun
from isorun.graph.io import structure

HEAD = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 5]>'
MODELS = {
    "Split.*num_outputs = 1 and 2": "(float[n, 6] x) => (y, z) { y, z = Split <axis = 1, num_outputs = 1> (x) }",
    "Split.*num_outputs = 3 and 2": "(float[n, 6] x) => (y, z) { y, z = Split <axis = 1, num_outputs = 3> (x) }",
    "GatherND.*batch_dims = -100": "(float[2, 3] x, int64[2, 1] i) => (y) { y = GatherND <batch_dims = -100> (x, i) }",
    "LayerNormalization.*axis = 900": "(float[n, 3] x, float[3] s) => (y) { y = LayerNormalization <axis=900> (x, s) }",
    "Relu needs 1 input": "(float[2, 3] x) => (y) { y = Relu () }",
    "Where needs 3 input": "(bool[2] x, float[2] a) => (y) { y = Where (x, a) }",
}


@pytest.mark.parametrize("message", MODELS)
def test_rejects_by_name(message: str) -> None:
    model = onnx.parser.parse_model(f"{HEAD} g {MODELS[message]}").SerializeToString()
    for backend in ("ort-cpu", "openvino", "reference"):
        with pytest.raises(isorun.InvalidModel, match=message):
            isorun.Session(model, backend)


def omitted(model: onnx.ModelProto) -> onnx.NodeProto:
    return model.graph.node[0]


def in_a_branch(model: onnx.ModelProto) -> onnx.NodeProto:
    return model.graph.node[1].attribute[0].g.node[0]


def in_a_function(model: onnx.ModelProto) -> onnx.NodeProto:
    return model.functions[0].node[0]


@pytest.mark.parametrize("place", [omitted, in_a_branch, in_a_function])
def test_an_input_that_is_needed_may_not_be_omitted(place: Callable[[onnx.ModelProto], onnx.NodeProto]) -> None:
    model = onnx.parser.parse_model(f"""{HEAD.replace("5]", '5, "local" : 1]')}
        g (float[2] x, bool c) => (float[2] z) {{
            y = EyeLike (x)
            z = If (c) <then_branch = a () => (float[2] p) {{ p = Abs (x) }},
                        else_branch = b () => (float[2] q) {{ q = local.Twice (x) }}>
        }}
        <domain: "local", opset_import: ["" : 21]> Twice (a) => (b) {{ b = Add (a, a) }}""")
    structure.check(model, "the model")
    node = place(model)
    node.input[-1] = ""
    with pytest.raises(isorun.InvalidModel, match=f"{node.op_type} needs"):
        structure.check(model, "the model")


def test_inputs_that_are_optional_may_be_omitted() -> None:
    model = onnx.parser.parse_model(f"{HEAD} g (float[2] x, float h) => (float[2] y) {{ y = Clip (x, h, h) }}")
    model.graph.node[0].input[1] = ""
    structure.check(model, "the model")


def test_a_type_as_an_attribute() -> None:
    element = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [None])
    node = onnx.helper.make_node("Optional", [], ["y"], type=element)
    output = onnx.helper.make_value_info("y", onnx.helper.make_optional_type_proto(element))
    graph = onnx.helper.make_graph([node], "g", [], [output])
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    with isorun.Session(model.SerializeToString(), "ort-cpu") as session:
        assert session.run(None, {}) == [None]
