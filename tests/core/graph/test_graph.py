"""``isorun.graph.fuse`` in place, on what people hold: ONNX's own model, or onnx_ir's."""

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import exports
from isorun import graph
from isorun.errors import InvalidModel
from isorun.graph.io import files
from isorun.graph.ops import functions

LABEL = "bert-torchscript17-eager"


def fused_operators(model: ir.Model) -> int:
    return sum(functions.is_fused(node) for node in model.graph)


def test_an_onnx_model_is_fused_in_place_and_runs_anywhere() -> None:
    model = exports.proto(LABEL)
    report = graph.fuse(model)
    assert report.complete
    onnx.checker.check_model(model)
    assert any(node.domain == functions.DOMAIN for node in model.graph.node)
    assert exports.agree(LABEL, exports.run(model, exports.given(LABEL)))


def test_a_model_of_onnx_ir_is_fused_in_place() -> None:
    model = exports.model(LABEL)
    report = graph.fuse(model)
    assert fused_operators(model) == sum(report.fused.values())
    assert exports.agree(LABEL, exports.run(model, exports.given(LABEL)))


@pytest.mark.parametrize("label", [LABEL, "albert-torchscript17-eager"])
def test_fusing_twice_changes_nothing(label: str) -> None:
    model = exports.proto(label)
    first = graph.fuse(model)
    before = model.SerializeToString()
    again = graph.fuse(model)
    assert (again.complete, again.fused) == (True, first.fused)
    assert model.SerializeToString() == before


def test_other_models_are_unchanged() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {y = Relu (x)}'
    )
    before = model.SerializeToString()
    assert not graph.fuse(model).is_encoder
    assert model.SerializeToString() == before
    read = ir.serde.deserialize_model(model)
    kept = read.graph
    report = graph.fuse(read)
    assert (report.is_encoder, report.complete) == (False, False)
    assert "No part of an encoder" in str(report)
    assert read.graph is kept


def test_rejects_a_proto_with_unloaded_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    files.write(exports.model(LABEL), path, beside_above=0)
    with pytest.raises(InvalidModel, match=r"model\.weights\.bin.*files\.read"):
        graph.fuse(onnx.load(path, load_external_data=False))
    model = files.read(path)
    assert graph.fuse(model).complete
    assert fused_operators(model)


def test_rejects_an_object_that_is_not_a_model() -> None:
    with pytest.raises(TypeError, match="PosixPath"):
        graph.fuse(Path("model.onnx"))  # type: ignore[arg-type]
