from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import masks
import tiny


def test_a_model_is_described(isorun: Callable[..., Any], bert: Path) -> None:
    described = isorun("inspect", bert, "--json").json
    assert [spec["name"] for spec in described["inputs"]] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [spec["name"] for spec in described["outputs"]] == ["last_hidden_state", "pooler_output"]
    assert described["inputs"][0]["shape"] == ["batch", "sequence"]
    assert described["inputs"][0]["bounds"] == [0, tiny.VOCABULARY - 1]
    assert described["limits"]["sequence"] == tiny.POSITIONS
    assert described["fused"]["SelfAttention"] == 2
    assert len(described["fingerprint"]) == 64
    assert described["parameters"] >= sum(described["parameters_by_precision"].values()) > 0
    assert described["dialects"]["onnx"] == {"possible": True, "reason": None}


def test_layers_are_listed_with_their_zeros(
    isorun: Callable[..., Any], bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    import onnx
    from onnx import numpy_helper

    model = onnx.load(bert)
    (weights,) = (tensor for tensor in model.graph.initializer if tensor.name == "encoder.layer.0.output.dense.weight")
    zeroed = numpy_helper.to_array(weights).copy()
    zeroed[:16] = 0
    weights.CopyFrom(numpy_helper.from_array(zeroed, weights.name))
    onnx.save(model, tmp_path / "pruned.onnx")
    layers = {layer["name"]: layer for layer in isorun("inspect", tmp_path / "pruned.onnx", "--json").json["layers"]}
    pruned, dense = layers["layer.0.output"], layers["layer.1.output"]
    assert (pruned["sparsity"], pruned["zero_blocks"], pruned["pattern"]) == (0.25, 0.25, "block4")
    assert (dense["sparsity"], dense["pattern"]) == (0, "dense")
    assert np.prod(pruned["shape"]) * 4 == pruned["bytes"]
    monkeypatch.setenv("COLUMNS", "160")
    shown = isorun("inspect", tmp_path / "pruned.onnx").out.splitlines()
    (line,) = (shown_line for shown_line in shown if "layer.0.output" in shown_line)
    assert line.split() == ["layer.0.output", "MatMul", "64x32", "fp32", "25.0%", "25.0%", "block4", "4,096"]


def test_describes_a_model_that_is_not_an_encoder(isorun: Callable[..., Any], tmp_path: Path) -> None:
    import onnx.parser

    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Tanh (x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    described = isorun("inspect", tmp_path / "m.onnx", "--json").json
    assert (described["is_encoder"], described["operations_per_token"], described["layers"]) == (False, None, [])
    assert "not an encoder" in isorun("inspect", tmp_path / "m.onnx").out


def test_prints_the_description(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("inspect", bert)
    assert ran.code == 0
    for expected in ("input_ids", "[batch, sequence]", "0 to 98", "2 SelfAttention", "sequence is at most 40"):
        assert expected in ran.out


def test_a_checkpoints_folder_is_a_model(isorun: Callable[..., Any], checkpoint: Path, bert: Path) -> None:
    folder, file = (isorun("inspect", model, "--json").json for model in (checkpoint, bert))
    assert folder["fused"] == file["fused"]
    assert folder["parameters"] == file["parameters"]


def test_counts_external_weights(isorun: Callable[..., Any], bert: Path, tmp_path: Path) -> None:
    import onnx

    onnx.save(onnx.load(bert), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    described = isorun("inspect", tmp_path / "m.onnx", "--json").json
    assert described["external_data"] == ["m.data"]
    assert described["bytes"] == sum((tmp_path / name).stat().st_size for name in ("m.onnx", "m.data"))
    assert "weights in m.data" in isorun("inspect", tmp_path / "m.onnx").out


def test_suggests_the_nearest_model(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("inspect", bert.with_name("brt.onnx"))
    assert ran.code == 2
    assert ran.err.endswith(f"did you mean {bert}?\n")
    assert "did you mean all-MiniLM-L6-v2?" in isorun("inspect", "all-MiniLM-L6").err
    assert "Expected a file" in isorun("inspect", "xlnet-large-cased").err


@pytest.mark.parametrize("mask", [masks.NAME, None])
def test_the_mask_and_the_outputs_of_tokens_are_shown(
    isorun: Callable[..., Any], mask: str | None, tmp_path: Path
) -> None:
    path = masks.write(tmp_path / "model.onnx", mask)
    described = isorun("inspect", path, "--json").json
    assert described["mask"] == mask
    assert described["token_outputs"] == (None if mask is None else ["last_hidden_state"])
    shown = {line.split("  ")[0].strip(): line for line in isorun("inspect", path).out.splitlines()}
    assert ("none known" if mask is None else mask) in shown["mask"]
    assert ("not known" if mask is None else "last_hidden_state") in shown["per token"]
