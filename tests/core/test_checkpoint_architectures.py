"""Checkpoints of every architecture answer as PyTorch does, on all five kinds of mask."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import exports
from isorun import Session, checkpoint
from isorun.graph import files, functions

NAMES = ("albert", "bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-r")
CHECKPOINTS = exports.FOLDER / "checkpoints"


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_answers_as_pytorch_does(name: str, backend: str, tmp_path: Path) -> None:
    path = tmp_path / "built.onnx"
    assert checkpoint.build(CHECKPOINTS / name, path) == []
    with np.load(CHECKPOINTS / name / "expected.npz") as stored:
        given = {key: stored[key] for key in stored if key not in ("logits", "last_hidden_state")}
        expected = {key: stored[key] for key in ("logits", "last_hidden_state")}
    with Session(path, backend=backend, padding="keep") as session:
        assert [spec.name for spec in session.get_inputs()] == list(given)
        found = session.run(list(expected), given)
    for (label, array), got in zip(expected.items(), found, strict=True):
        np.testing.assert_allclose(got, array, rtol=0, atol=1e-5, err_msg=label)


def test_albert_stores_its_layer_once(tmp_path: Path) -> None:
    checkpoint.build(CHECKPOINTS / "albert", tmp_path / "built.onnx")
    attentions = [n for n in files.read(tmp_path / "built.onnx").graph if n.op_type in functions.ATTENTIONS]
    assert len(attentions) == 3
    assert len({node.inputs[2] for node in attentions}) == 1


@pytest.mark.parametrize("padding", [-1, 120, "one"])
def test_a_padding_id_that_is_none(padding: object, tmp_path: Path) -> None:
    folder = tmp_path / "roberta"
    shutil.copytree(CHECKPOINTS / "roberta", folder)
    config = (folder / "config.json").read_text()
    said = repr(padding).replace("'", '"')
    (folder / "config.json").write_text(config.replace('"pad_token_id": 1', f'"pad_token_id": {said}'))
    with pytest.raises(checkpoint.InvalidModel, match="pad_token_id"):
        checkpoint.build(folder, tmp_path / "built.onnx")
