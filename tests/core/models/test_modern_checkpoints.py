"""Checkpoints of encoders after BERT: their graphs, and the exports of the same weights, are the same operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import exports
from isorun.graph import pipeline
from isorun.models import checkpoint

NAMES = ("deberta-v2", "deberta-v3", "deberta-v3-sequence", "deberta-v3-token", "jina-v2", "t5", "mt5")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_computes_what_its_export_computes(name: str, tmp_path: Path) -> None:
    assert checkpoint.build(exports.checkpoint(name, tmp_path), tmp_path / "built.onnx") == []
    label = f"{name}-dynamo18-eager"
    export = exports.model(label)
    assert pipeline.fuse(export).complete
    built = pipeline.read(tmp_path / "built.onnx", [value.name or "" for value in export.graph.outputs]).model
    assert exports.agree(label, exports.run(built, exports.given(label)))
    fused, made = (
        Counter((node.domain, node.op_type, node.overload) for node in model.graph if node.domain)
        for model in (export, built)
    )
    assert made == fused


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("deberta-v2", '"conv_kernel_size": 3', "conv_kernel_size"),
        ("deberta-v2", '"pos_att_type": ["c2p"]', "pos_att_type"),
        ("jina-v2", '"feed_forward_type": "original"', "feed_forward_type"),
        ("t5", '"feed_forward_proj": "gated-mish"', "feed_forward_proj"),
        ("t5", '"dense_act_fn": "gelu"', "dense_act_fn"),
        ("mt5", '"is_gated_act": false', "is_gated_act"),
        ("qwen3", '"use_sliding_window": true', "use_sliding_window"),
    ],
)
def test_rejects_settings_that_it_does_not_support(name: str, settings: str, message: str, tmp_path: Path) -> None:
    folder = exports.checkpoint(name, tmp_path)
    config = (folder / "config.json").read_text(encoding="utf-8").rstrip().removesuffix("}")
    (folder / "config.json").write_text(f"{config},\n{settings}\n}}")
    with pytest.raises(checkpoint.InvalidModel, match=message):
        checkpoint.build(folder, tmp_path / "built.onnx")
