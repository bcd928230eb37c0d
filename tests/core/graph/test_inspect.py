"""What is found in a model, beside what was put in it."""

from pathlib import Path

import onnx.parser
import onnx_ir as ir
import pytest

import exports
import tiny
from isorun.graph.inspect import inspect
from isorun.graph.io import files
from isorun.graph.ops import functions
from isorun.graph.transforms import padding_removal

WIDTH, INNER, LAYERS = tiny.WIDTH, tiny.CONFIG["intermediate_size"], tiny.CONFIG["num_hidden_layers"]
PER_TOKEN = LAYERS * 2 * (4 * WIDTH * WIDTH + 2 * WIDTH * INNER)


def test_an_encoder(bert: Path):
    described = inspect(bert)
    assert described.is_encoder
    assert described.info.fused["SelfAttention"] == LAYERS
    assert described.operators["isorun.fused.SelfAttention"] == LAYERS
    assert described.parameters["fp32"] == sum(array.size for array in tiny.weights().values())
    assert described.operations_per_token == PER_TOKEN  # the pooler runs once a sequence
    assert described.operations_per_token_and_key == LAYERS * 4 * WIDTH
    assert described.dialects == dict.fromkeys(functions.dialects(), "")
    assert {layer.per for layer in described.layers if layer.name == "pooler.dense"} == {"sequence"}


def test_a_path_may_be_a_string(bert: Path):
    assert inspect(str(bert)) == inspect(bert)


def test_inspect_does_not_change_the_graph(bert: Path):
    model = files.read(bert)
    before = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
    inspect(model)
    assert ir.serde.serialize_model(model).SerializeToString(deterministic=True) == before


def test_padding_removal_does_not_change_operation_counts(bert: Path):
    model = files.read(bert)
    padding_removal.remove(model)
    described = inspect(model)
    assert (described.operations_per_token, described.operations_per_token_and_key) == (PER_TOKEN, LAYERS * 4 * WIDTH)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("label", [label for label in exports.manifest() if label.startswith("bert")][:4])
def test_an_export_is_described_in_its_fused_form(label: str, tmp_path: Path):
    path = tmp_path / "export.onnx"
    path.write_bytes(exports.content(label))
    described = inspect(path)
    assert described.is_encoder
    assert described.operations_per_token is not None
    assert {layer.per for layer in described.layers if layer.operator.endswith("SelfAttention")} == {"token"}


def test_other_models_have_no_operations_per_token():
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,2,3,0}> '
    described = inspect(ir.serde.deserialize_model(onnx.parser.parse_model(text + "{ y = MatMul (x, w) }")))
    assert not described.is_encoder
    assert (described.operations_per_token, described.operations_per_token_and_key) == (None, None)
    assert [(layer.operations, layer.per) for layer in described.layers] == [(8, None)]
    assert all("not an encoder" in reason for reason in described.dialects.values())


def test_weights_in_constant_nodes_are_layers_too():
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[N,2] x) => (float[N,2] y) '
    body = "{ w = Constant <value = float[2,2] {1, 2, 3, 0}> () y = MatMul (x, w) }"
    described = inspect(ir.serde.deserialize_model(onnx.parser.parse_model(text + body)))
    assert described.operators == {"Constant": 1, "MatMul": 1}
    assert (described.parameters, len(described.layers)) == ({"fp32": 4}, 1)


def test_reports_why_a_dialect_is_unsupported(bert: Path):
    model = files.read(bert)
    first = next(node for node in model.graph if node.op_type == "Tanh")
    model.graph.append(ir.node("GroupNormalization", [first.outputs[0]] * 3, {"num_groups": 1}))
    described = inspect(model)
    assert "GroupNormalization" in described.dialects["onnx"]
    assert described.dialects["primitive"] == ""
