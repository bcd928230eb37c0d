from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import typer
from typer.testing import CliRunner

import tiny
from isorun.errors import IsorunError
from isorun.system.cache import ENVIRONMENT_VARIABLE
from isorun_deepsparse.command import app


@pytest.fixture(autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never the user's cache."""
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path_factory.mktemp("cache")))


def prune(*arguments: object) -> str:
    """What ``isorun prune`` prints."""
    return CliRunner().invoke(app, [*map(str, arguments)], standalone_mode=False, catch_exceptions=False).stdout


def test_prunes_and_keeps_the_input(bert: Path, tmp_path: Path) -> None:
    before, output = bert.read_bytes(), tmp_path / "pruned.onnx"
    result: dict[str, Any] = json.loads(prune(bert, "-o", output, "--sparsity", 0.8, "--pattern", "block4", "--json"))
    assert result["written"]["path"] == str(output)
    assert len(result["pruned"]) == 4 * tiny.CONFIG["num_hidden_layers"]
    for layer in result["pruned"]:
        assert layer["pattern"] == "block4"
        assert layer["sparsity"] == pytest.approx(0.8, abs=4 / layer["elements"])
    assert bert.read_bytes() == before
    onnx.checker.check_model(onnx.load(output))
    table = prune(bert, "-o", output, "--sparsity", 0.8, "--layers", "layer.0.*")
    assert "4 matrices" in table
    assert "layer.1" not in table


@pytest.mark.parametrize("output", ["m.onnx", "link.onnx"])
def test_it_never_writes_over_its_input(bert: Path, tmp_path: Path, output: str) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(bert.read_bytes())
    (tmp_path / "link.onnx").hardlink_to(model)
    with pytest.raises((IsorunError, typer.BadParameter), match="is a file that this command reads"):
        prune(model, "-o", tmp_path / output, "--sparsity", 0.5)
    assert model.read_bytes() == bert.read_bytes()


@pytest.mark.parametrize("arguments", [["--sparsity", 80], ["--sparsity", 0.5, "--pattern", "blok4"]])
def test_rejects_invalid_arguments_and_writes_nothing(bert: Path, tmp_path: Path, arguments: list[object]) -> None:
    with pytest.raises((IsorunError, typer.BadParameter)):
        prune(bert, "-o", tmp_path / "p.onnx", *arguments)
    assert list(tmp_path.iterdir()) == []
