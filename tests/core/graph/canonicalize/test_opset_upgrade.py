"""Graphs in old opsets come to opset 13, with their weights untouched."""

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import exports
from isorun.errors import UnsupportedModel
from isorun.graph import pipeline
from isorun.graph.canonicalize import opset_upgrade
from isorun.graph.io import files, maps

LABELS = [label for label in exports.manifest() if "torchscript12" in label]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("label", LABELS)
def test_an_old_export_is_the_same_in_opset_13(label: str) -> None:
    model = exports.model(label)
    before = {name: value.const_value for name, value in model.graph.initializers.items()}
    opset_upgrade.upgrade(model)
    assert model.graph.opset_imports[""] == 13
    large = {name: tensor for name, tensor in before.items() if tensor is not None and tensor.nbytes > 1024}
    assert large
    assert all(model.graph.initializers[name].const_value is tensor for name, tensor in large.items())
    assert exports.difference(exports.answers(label), exports.run(model, exports.given(label))) == 0


def test_inputs_keep_their_order_and_a_newer_graph_stays() -> None:
    model = exports.model(LABELS[0])
    names = [value.name for value in model.graph.inputs]
    opset_upgrade.upgrade(model)
    assert [value.name for value in model.graph.inputs] == names
    graph = model.graph
    opset_upgrade.upgrade(model)
    assert model.graph is graph


def test_removes_weights_from_inputs() -> None:
    """Before version 4 of the format every initializer was an input too, and no caller could give it."""
    proto = exports.proto(LABELS[0])
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    model = ir.serde.deserialize_model(proto)
    assert pipeline.fuse(model).complete
    assert [value.name for value in model.graph.inputs] == exports.manifest()[LABELS[0]]["inputs"]
    assert exports.agree(LABELS[0], exports.run(model, exports.given(LABELS[0])))


def test_reports_a_failed_conversion() -> None:
    """Its own error says which operator; the graph stays as it was, and a fusion says so."""
    text = '<ir_version: 7, opset_import: ["" : 11]> g (float[2, 3] x) => (float[2, 3] y) { y = NoSuchOperator (x) }'
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    with pytest.raises(UnsupportedModel, match=r"opset 11.*NoSuchOperator"):
        opset_upgrade.upgrade(model)
    assert model.graph.opset_imports[""] == 11
    report = pipeline.fuse(model)
    assert not report.is_encoder
    assert "opset 11" in report.unread
    assert "opset 11" in str(report)


def test_rejects_an_attribute_of_the_wrong_type():
    """ONNX's converter crashes the process on one."""
    graph = 'g (float[2,3] x) => (float[2,3] y) { y = Softmax <axis = "one"> (x) }'
    text = f'<ir_version: 7, opset_import: ["" : 11]> {graph}'
    with pytest.raises(UnsupportedModel, match="axis"):
        opset_upgrade.upgrade(ir.serde.deserialize_model(onnx.parser.parse_model(text)))


def test_keeps_maps():
    """onnx_ir has no type for them."""
    pair = onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(1, []))
    text = '<ir_version: 7, opset_import: ["" : 11, "ai.onnx.ml" : 1]> g (float[N, 2] x) => (float y) '
    proto = onnx.parser.parse_model(f"{text} {{ p = Neg (x) y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (p) }}")
    proto.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(pair))
    model = files.from_proto(proto, "model")
    opset_upgrade.upgrade(model)
    assert model.graph.opset_imports[""] == 13
    assert maps.type_of(model.graph.outputs[0]) == proto.graph.output[0].type


@pytest.mark.parametrize("label", ["mt5-torchscript17-eager", "t5-torchscript17-sdpa"])
def test_fuses_opset_13(label: str) -> None:
    """Where ONNX infers no rank for a ``Reshape`` to sizes that are computed."""
    model = exports.model(label)
    model.graph.opset_imports[""] = 13  # but for this attribute, the nodes are the same
    for node in model.graph:
        node.attributes.pop("allowzero", None)
    feeds = exports.given(label)
    expected = exports.run(model, feeds)
    report = pipeline.fuse(model)
    assert report.complete, str(report)
    assert exports.difference(expected, exports.run(model, feeds)) < exports.MODERN_TOLERANCE
