from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import tiny


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_prunes_and_keeps_the_input(isorun: Callable[..., Any], bert: Path, tmp_path: Path) -> None:
    before, output = digest(bert), tmp_path / "pruned.onnx"
    ran = isorun("prune", bert, "-o", output, "--sparsity", 0.8, "--pattern", "block4", "--json")
    result = ran.json
    assert result["written"]["path"] == str(output)
    assert len(result["pruned"]) == 4 * tiny.CONFIG["num_hidden_layers"]
    for each in result["pruned"]:
        assert each["pattern"] == "block4"
        assert each["sparsity"] == pytest.approx(0.8, abs=4 / each["elements"])
    assert digest(bert) == before
    onnx.checker.check_model(onnx.load(output))
    table = isorun("prune", bert, "-o", output, "--sparsity", 0.8, "--layers", "layer.0.*").out
    assert "4 matrices" in table
    assert "layer.1" not in table


@pytest.mark.parametrize("output", ["m.onnx", "link.onnx"])
def test_it_never_writes_over_its_input(isorun: Callable[..., Any], bert: Path, tmp_path: Path, output: str) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(bert.read_bytes())
    (tmp_path / "link.onnx").hardlink_to(model)
    before = digest(model)
    ran = isorun("prune", model, "-o", tmp_path / output, "--sparsity", 0.5)
    assert (ran.code, digest(model)) == (2, before)
    assert "is the model itself" in ran.err


def test_rejects_invalid_arguments_and_writes_nothing(isorun: Callable[..., Any], bert: Path, tmp_path: Path) -> None:
    output = tmp_path / "p.onnx"
    ran = isorun("prune", bert, "-o", output, "--sparsity", 80)
    assert ran.code == 2
    assert "got 80" in ran.err
    ran = isorun("prune", bert, "-o", output, "--sparsity", 0.5, "--pattern", "blok4")
    assert ran.code == 2
    assert "did you mean 'block4'" in ran.err
    assert list(tmp_path.iterdir()) == []
