"""Sessions run any exporter's encoder in the fused form, and every other model as given."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import exports
import isorun

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


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("label", "longest_length"),
    [
        ("bert-torchscript17-eager", 64),
        ("distilbert-dynamo23-eager", 64),
        ("mpnet-dynamo18-eager", 62),
        ("roberta-torchscript17-sdpa", 62),
        ("roberta-tf2onnx17", 62),
    ],
)
def test_rejects_feeds_that_are_longer_than_the_position_table(label: str, longest_length: int, tmp_path: Path) -> None:
    """The tables have 64 positions. RoBERTa's positions begin after the id of padding, which is 1."""
    with isorun.Session(exports.content(label), "ort-cpu", cache_dir=tmp_path) as session:
        longest = exports.given(label, longest_length, 1)
        untouched = exports.run(exports.content(label), longest)
        assert exports.difference(untouched, session.run(None, longest)) < exports.TOLERANCE
        with pytest.raises(isorun.InvalidFeeds, match=str(longest_length + 1)):
            session.run(None, exports.given(label, longest_length + 1, 1))


def test_rejects_positions_outside_their_table(tmp_path: Path) -> None:
    """Longer feeds are accepted: positions may start again."""
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
    with isorun.Session(proto, backend="ort-cpu", padding="keep", cache_dir=tmp_path) as session:
        feeds = exports.given(label, 80)
        feeds["position_ids"] = np.tile(np.arange(40), (5, 2))
        assert exports.difference(exports.run(proto, feeds), session.run(None, feeds)) < exports.TOLERANCE
        feeds["position_ids"][1, 7] = 64
        with pytest.raises(isorun.InvalidFeeds, match="position_ids"):
            session.run(None, feeds)
