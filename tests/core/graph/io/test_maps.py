"""Models with values that are maps, as scikit-learn's classifiers are written."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import isorun
from isorun import graph
from isorun.errors import InvalidFeeds
from isorun.graph import inspect as inspecting
from isorun.graph import model_info, pipeline
from isorun.graph.io import files

X = np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], np.float32)


def model(nodes, inputs, outputs) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=opsets, ir_version=9)


def map_of(key: int) -> onnx.TypeProto:
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))


@pytest.fixture
def classifier():
    return model(
        [
            helper.make_node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
            helper.make_node("ZipMap", ["x"], ["chances"], domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]),
        ],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
            helper.make_value_info("chances", helper.make_sequence_type_proto(map_of(TensorProto.STRING))),
        ],
    )


@pytest.fixture
def vectorizer():
    return model(
        [helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b"])],
        [helper.make_value_info("x", map_of(TensorProto.STRING))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
    )


def test_what_a_runtime_computes_wrongly_is_rewritten_beside_maps(classifier):
    """The types of its values must be known for that."""
    lowest = np.array([-(2**31), 7], np.int32)
    classifier.graph.node.extend(
        [helper.make_node("Neg", ["p"], ["divisor"]), helper.make_node("Div", ["p", "divisor"], ["quotient"])]
    )
    classifier.graph.input.append(helper.make_tensor_value_info("p", TensorProto.INT32, [2]))
    classifier.graph.output.append(helper.make_tensor_value_info("quotient", TensorProto.INT32, [2]))
    with isorun.Session(classifier, "ort-cpu") as session:
        assert session.provenance.details["graph"]["worked_around"]
        np.testing.assert_array_equal(session.run(["quotient"], {"x": X, "p": lowest}), [[1, -1]])


def test_a_classifier_runs_as_in_onnxruntime(classifier):
    raw = onnxruntime.InferenceSession(classifier.SerializeToString())
    expected = raw.run(None, {"x": X})
    with isorun.Session(classifier, "ort-cpu") as session:
        assert [value.type for value in session.get_outputs()] == [value.type for value in raw.get_outputs()]
        label, chances = session.run(None, {"x": X})
    np.testing.assert_array_equal(label, expected[0])
    assert chances == expected[1]
    assert list(chances[0]) == ["a", "b", "c"]


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
def test_the_labels_alone_run_anywhere(classifier, backend):
    with isorun.Session(classifier, backend, outputs=["label"]) as session:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], [1, 0])
        assert [result[0].item() for result in session.map([{"x": row} for row in X])] == [1, 0]


def test_selects_the_probabilities(classifier):
    with isorun.Session(classifier, "ort-cpu", outputs=["chances"]) as session:
        assert session.get_outputs()[0].type == "seq(map(string,tensor(float)))"
        assert session.run(None, {"x": X})[0][1]["c"] == X[1, 2]


@pytest.mark.parametrize("outputs", [None, ["y"]])
def test_a_map_is_fed(vectorizer, outputs):
    with isorun.Session(vectorizer, "ort-cpu", outputs=outputs) as session:
        assert session.get_inputs()[0].type == "map(string,tensor(float))"
        np.testing.assert_array_equal(session.run(None, {"x": {"b": 2.0, "a": 1.0}})[0], [[1, 2]])
        with pytest.raises(InvalidFeeds, match="'x' is a dict"):
            next(session.map([{"x": {"a": 1.0}}]))


@pytest.mark.parametrize("name", ["classifier", "vectorizer"])
def test_round_trip_preserves_map_types(name, request, tmp_path):
    proto = request.getfixturevalue(name)
    before = proto.SerializeToString()
    read = files.from_proto(proto, "it")
    files.write(read, tmp_path / "again.onnx", beside_above=0)
    again = files.read_proto(tmp_path / "again.onnx")
    assert list(again.graph.input) == list(proto.graph.input)
    assert list(again.graph.output) == list(proto.graph.output)
    assert proto.SerializeToString() == before


def test_reports_that_maps_are_not_in_encoders(classifier, tmp_path):
    assert graph.fuse(classifier).unread == "some of its values are maps, which no encoder has"
    onnx.save(classifier, tmp_path / "it.onnx")
    assert pipeline.read(tmp_path / "it.onnx")[1] is False
    assert inspecting.inspect(tmp_path / "it.onnx").operators == {"ArgMax": 1, "ai.onnx.ml.ZipMap": 1}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (map_of(TensorProto.INT64), "map(int64,tensor(float))"),
        (helper.make_optional_type_proto(map_of(TensorProto.STRING)), "optional(map(string,tensor(float)))"),
    ],
)
def test_types_by_onnxruntimes_names(kind, name):
    proto = model([], [helper.make_value_info("x", kind)], [helper.make_value_info("x", kind)])
    assert model_info.describe(files.from_proto(proto, "it")).inputs[0].type == name
