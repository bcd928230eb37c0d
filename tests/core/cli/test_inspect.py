from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiny


def test_a_model_is_described(isorun: Callable[..., Any], bert: Path) -> None:
    described = isorun("inspect", bert, "--json").json
    weights = tiny.weights()
    assert [each["name"] for each in described["inputs"]] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [each["name"] for each in described["outputs"]] == ["last_hidden_state", "pooler_output"]
    assert described["inputs"][0]["shape"] == ["batch", "sequence"]
    assert described["inputs"][0]["bounds"] == [0, tiny.VOCABULARY - 1]
    assert described["limits"]["sequence"] == tiny.POSITIONS
    assert described["fused"]["SelfAttention"] == 2
    # The graph may add constants of its own, which are few.
    assert 0 <= described["parameters"] - sum(array.size for array in weights.values()) < 20
    assert len(described["fingerprint"]) == 64


def test_people_read_the_same(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("inspect", bert)
    assert ran.code == 0
    for expected in ("input_ids", "[batch, sequence]", "0 to 98", "2 SelfAttention", "sequence is at most 40"):
        assert expected in ran.out


def test_a_checkpoints_folder_is_a_model(isorun: Callable[..., Any], checkpoint: Path, bert: Path) -> None:
    folder, file = (isorun("inspect", each, "--json").json for each in (checkpoint, bert))
    assert folder["fused"] == file["fused"]
    assert folder["parameters"] == file["parameters"]


def test_weights_beside_are_counted(isorun: Callable[..., Any], bert: Path, tmp_path: Path) -> None:
    import onnx

    onnx.save(onnx.load(bert), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    described = isorun("inspect", tmp_path / "m.onnx", "--json").json
    assert described["external_data"] == ["m.data"]
    assert described["bytes"] == sum((tmp_path / name).stat().st_size for name in ("m.onnx", "m.data"))
    assert "weights in m.data" in isorun("inspect", tmp_path / "m.onnx").out


def test_a_missing_model_has_the_nearest_name(isorun: Callable[..., Any], bert: Path) -> None:
    ran = isorun("inspect", bert.with_name("brt.onnx"))
    assert ran.code == 2
    assert ran.err.endswith(f"did you mean {bert}?\n")
    assert "did you mean all-MiniLM-L6-v2?" in isorun("inspect", "all-MiniLM-L6").err


@pytest.mark.parametrize(("content", "message"), [(b"", "is empty"), (b"hello", "is not an ONNX model")])
def test_not_a_model(isorun: Callable[..., Any], tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    ran = isorun("inspect", path)
    assert ran.code == 2
    assert message in ran.err
