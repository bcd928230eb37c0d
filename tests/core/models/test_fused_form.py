"""A session takes any exporter's encoder in the fused form, and every other model as it came."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import exports
import isorun
from isorun.models import source as models
from isorun.system.cache import Cache

LABEL = "bert-torchscript17-sdpa"


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
def test_an_export_runs_fused(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exports.content(LABEL))
    with isorun.Session(path, backend=backend, padding="keep", cache_dir=tmp_path / "cache") as session:
        assert exports.agree(LABEL, session.run(None, exports.given(LABEL)))
        fused = session.provenance.fused
    assert fused["SelfAttention"] == 3
    assert fused["SkipLayerNormalization"] == 6


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    with isorun.Session(exports.content("roberta-dynamo18-eager"), backend="ort-cpu", cache_dir=tmp_path) as session:
        feeds = exports.given("roberta-dynamo18-eager")
        feeds["input_ids"][0, 0] = 120
        with pytest.raises(isorun.InvalidFeeds, match="120"):
            session.run(None, feeds)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
@pytest.mark.parametrize(
    ("label", "most"),
    [
        ("bert-torchscript17-eager", 64),
        ("distilbert-dynamo23-eager", 64),
        ("mpnet-dynamo18-eager", 62),
        ("roberta-torchscript17-sdpa", 62),
        ("roberta-tf2onnx17", 62),
    ],
)
def test_the_longest_feed_is_taken_and_a_longer_one_refused(
    label: str, most: int, backend: str, tmp_path: Path
) -> None:
    """The tables have 64 positions. Those of RoBERTa's kind begin behind the id of padding, which is 1."""
    with isorun.Session(exports.content(label), backend=backend, cache_dir=tmp_path) as session:
        longest = exports.given(label, most, 1)
        untouched = exports.run(exports.content(label), longest)
        assert exports.difference(untouched, session.run(None, longest)) < exports.TOLERANCE
        with pytest.raises(isorun.InvalidFeeds, match=f"of {most + 1}; the model goes up to {most} "):
            session.run(None, exports.given(label, most + 1, 1))


def test_positions_that_are_fed_are_held_to_their_table(tmp_path: Path) -> None:
    """The length is not: positions may begin anew."""
    label = "bert-torchscript17-eager"
    model = exports.model(label)
    rows = next(value for name, value in model.graph.initializers.items() if "position_embeddings" in name)
    (gather,) = rows.consumers()
    positions = ir.Value(
        name="position_ids", shape=ir.Shape(["batch", "sequence"]), type=ir.TensorType(ir.DataType.INT64)
    )
    model.graph.inputs.append(positions)
    gather.replace_input_with(1, positions)
    proto = ir.serde.serialize_model(model)
    with isorun.Session(proto, backend="ort-cpu", cache_dir=tmp_path) as session:
        feeds = exports.given(label, 80)
        feeds["position_ids"] = np.tile(np.arange(40), (5, 2))
        assert exports.difference(exports.run(proto, feeds), session.run(None, feeds)) < exports.TOLERANCE
        feeds["position_ids"][1, 7] = 64
        with pytest.raises(isorun.InvalidFeeds, match=r"'position_ids' holds 64 at \[1, 7\]"):
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
