"""Checkpoints of encoders after BERT: their graphs, and the exports of the same weights, are the same operators."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import exports
import tiny
from isorun.errors import UnsupportedModel
from isorun.graph import pipeline
from isorun.models import checkpoint

NAMES = ("deberta-v2", "deberta-v3", "deberta-v3-sequence", "deberta-v3-token", "jina-v2", "t5", "mt5")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [*NAMES, *exports.MODERN_CHECKPOINTS])
def test_a_checkpoint_computes_what_its_export_computes(name: str, tmp_path: Path) -> None:
    assert checkpoint.build(exports.checkpoint(name, tmp_path), tmp_path / "built.onnx") == []
    label = f"{name}-dynamo18-eager"
    export = exports.fused(label)
    assert exports.fusion(label)[1].complete
    built = pipeline.read(tmp_path / "built.onnx", [value.name or "" for value in export.graph.outputs]).model
    assert exports.agree(label, exports.run(built, exports.given(label)))
    fused, composed = (
        Counter((node.domain, node.op_type, node.overload) for node in model.graph if node.domain)
        for model in (export, built)
    )
    assert composed == fused


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("deberta-v2", '"conv_kernel_size": 3', "conv_kernel_size"),
        ("deberta-v2", '"pos_att_type": ["c2p"]', "pos_att_type"),
        ("deberta-v3", '"max_relative_positions": 2', "max_relative_positions"),
        ("deberta-v3", '"position_buckets": 1', "position_buckets"),
        ("jina-v2", '"feed_forward_type": "original"', "feed_forward_type"),
        ("t5", '"feed_forward_proj": "gated-mish"', "feed_forward_proj"),
        ("t5", '"dense_act_fn": "gelu"', "dense_act_fn"),
        ("t5", '"relative_attention_max_distance": 1', "relative_attention_max_distance"),
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


def renamed(folder: Path, tables: Callable[[np.ndarray], dict[str, np.ndarray]], name: str) -> Path:
    """Replace a tensor of a checkpoint by others that are made of it."""
    path = folder / "model.safetensors"
    weights = safetensors.numpy.load_file(path)
    tiny.write_safetensors(path, weights | tables(weights.pop(name)))
    return folder


@pytest.mark.parametrize("others", [(), ("shared.weight",)])
def test_t5_reads_the_encoders_table_of_words_if_it_is_stored(others: tuple[str, ...], tmp_path: Path) -> None:
    """As transformers 5, which ties it to the shared one only where it is not."""
    folder = exports.checkpoint("t5", tmp_path)
    renamed(
        folder, lambda words: {"encoder.embed_tokens.weight": words, **dict.fromkeys(others, -words)}, "shared.weight"
    )
    assert checkpoint.build(folder, tmp_path / "built.onnx") == []
    label = "t5-dynamo18-eager"
    built = pipeline.read(tmp_path / "built.onnx", ["last_hidden_state"]).model
    assert exports.agree(label, exports.run(built, exports.given(label)))


def test_a_table_of_positions_is_unused_only_where_the_config_says_so(tmp_path: Path) -> None:
    table = {"embeddings.position_embeddings.weight": np.ones((8, 32), np.float32)}
    for name in ("deberta-v3", "gte"):
        path = exports.checkpoint(name, tmp_path) / "model.safetensors"
        tiny.write_safetensors(path, {**safetensors.numpy.load_file(path), **table})
    assert checkpoint.build(tmp_path / "deberta-v3", tmp_path / "built.onnx") == []
    with pytest.raises(UnsupportedModel, match=r"embeddings\.position_embeddings\.weight"):
        checkpoint.build(tmp_path / "gte", tmp_path / "built.onnx")
