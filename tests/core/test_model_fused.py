"""A session takes any exporter's encoder in the fused form, and every other model as it came."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import exports
import isorun
from isorun import model as models
from isorun.cache import Cache

LABEL = "bert-torchscript17-sdpa"


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
def test_an_export_runs_fused(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exports.content(LABEL))
    with isorun.Session(path, backend=backend, padding="keep", cache_dir=tmp_path / "cache") as session:
        assert exports.agree(LABEL, session.run(None, exports.given(LABEL)))
        fused = session.provenance.fused
    assert fused["GuardedSelfAttention"] == 3
    assert fused["SkipLayerNormalization"] == 6


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    with isorun.Session(exports.content("roberta-dynamo18-eager"), backend="ort-cpu", cache_dir=tmp_path) as session:
        feeds = exports.given("roberta-dynamo18-eager")
        feeds["input_ids"][0, 0] = 120
        with pytest.raises(isorun.InvalidFeeds, match="120"):
            session.run(None, feeds)


def test_a_model_that_is_no_encoder_is_handed_on_as_it_came(tmp_path: Path) -> None:
    """GELU with a bias is found in it, and it is still the file that came."""
    path = tmp_path / "gelu.onnx"
    weight = np.ones((4, 4), np.float32)
    onnx.save(
        onnx.helper.make_model(
            onnx.helper.make_graph(
                [
                    onnx.helper.make_node("MatMul", ["x", "w"], ["p"]),
                    onnx.helper.make_node("Add", ["p", "b"], ["a"]),
                    onnx.helper.make_node("Gelu", ["a"], ["y"]),
                ],
                "gelu",
                [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])],
                [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])],
                [onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(weight[0], "b")],
            ),
            opset_imports=[onnx.helper.make_opsetid("", 20)],
            ir_version=10,
        ),
        path,
    )
    cache = Cache(tmp_path / "cache")
    lowered = models.lower(models.open_model(path, cache), ("com.microsoft", "onnx"), cache)
    assert lowered.path == path
    assert lowered.dialect == "onnx"
    assert not lowered.info.fused


def test_an_encoder_that_no_dialect_can_express_runs_as_it_came(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exports.content(LABEL))
    cache = Cache(tmp_path / "cache")
    lowered = models.lower(models.open_model(path, cache), (), cache)
    assert lowered.path == path
    assert not lowered.info.fused
