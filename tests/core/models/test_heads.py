"""Checkpoints with heads answer as transformers does."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

import isorun
from archives import FOLDER, unpack
from isorun.graph.builders import heads as layers
from isorun.models import checkpoint, heads

with tarfile.open(FOLDER / "heads.tar.xz") as packed:
    NAMES = sorted({name.partition("/")[0] for name in packed.getnames()})
TOLERANCE = 1e-5  # of 1 + |x|
CPU = "ort-cpu"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("heads", tmp_path_factory.mktemp("heads"))


def assert_answers(folder: Path, backend: str, padding: str) -> None:
    expected = np.load(folder / "expected.npz")
    mask = expected["attention_mask"]
    with isorun.Session(folder, backend, padding=padding, threads=1) as session:
        feeds = {spec.name: expected[spec.name] for spec in session.get_inputs() if spec.name in expected}
        feeds |= {spec.name: np.zeros_like(mask) for spec in session.get_inputs() if spec.name not in feeds}
        names = [spec.name for spec in session.get_outputs()]
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
    for name in expected.files:
        if name not in ("input_ids", "attention_mask"):
            kept = mask > 0 if outputs[name].shape[:2] == mask.shape else ...
            difference = np.abs(outputs[name] - expected[name]) / (1 + np.abs(expected[name]))
            assert difference[kept].max() < TOLERANCE, name


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_answers_with_padding(name: str, checkpoints: Path) -> None:
    assert_answers(checkpoints / name, CPU, "keep")


@pytest.mark.sampled(11)
@pytest.mark.parametrize("name", NAMES)
def test_answers_without_padding(name: str, checkpoints: Path) -> None:
    assert_answers(checkpoints / name, CPU, "remove")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_answers_on_openvino(name: str, checkpoints: Path) -> None:
    assert_answers(checkpoints / name, "openvino", "auto")


def changed(folder: Path, **settings: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | settings))
    return folder


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("modernbert-SequenceClassification", "classifier_pooling", "max"),
        ("modernbert-SequenceClassification", "classifier_activation", "prelu"),
        ("deberta-v2-SequenceClassification", "pooler_hidden_act", "prelu"),
        ("qwen3-SequenceClassification", "pad_token_id", None),
        ("qwen2-SequenceClassification", "use_sliding_window", True),
        ("mistral-SequenceClassification", "sliding_window", 16),
        ("bert-TokenClassification", "id2label", {}),
    ],
)
def test_rejects_a_setting_of_the_head(name: str, key: str, value: object, tmp_path: Path) -> None:
    folder = unpack("heads", tmp_path, name)
    with pytest.raises(isorun.InvalidModel, match=key):
        checkpoint.build(changed(folder, **{key: value}), tmp_path / "built.onnx")


@pytest.mark.parametrize("family", ["albert", "nomic_bert"])
def test_a_head_has_the_activation_of_the_family_if_none_is_named(family: str, tmp_path: Path) -> None:
    """Neither is ``gelu``; transformers writes the key, authors leave it out."""
    folder = unpack("heads", tmp_path, f"{family}-MaskedLM")
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    del settings["hidden_act"]
    path.write_text(json.dumps(settings))
    assert_answers(folder, "ort-cpu", "auto")


def test_the_kinds_without_a_head_have_none() -> None:
    assert heads.known("gpt2") == {}
    assert set(heads.known("t5")) == {layers.TOKENS}
