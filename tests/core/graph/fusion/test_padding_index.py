"""Exports of every architecture without the work that padding costs."""

from pathlib import Path

import numpy as np
import pytest

import exports
from isorun.graph.io import files
from isorun.graph.ops import lower
from isorun.graph.transforms import padding_removal

LABELS = [
    *("bert-torchscript17-eager", "bert-torchscript17-sdpa", "roberta-dynamo18-sdpa", "distilbert-dynamo23-sdpa"),
    *("electra-torchscript14-sdpa", "albert-dynamo18-eager", "camembert-sequence-torchscript17-sdpa", "bert-tf2onnx13"),
    *("mpnet-dynamo18-eager", "mpnet-torchscript17-eager"),
]


DIALECTS = ("com.microsoft", "onnx", "primitive")
EVERY = [
    pytest.param(label, dialect, marks=[] if number % len(DIALECTS) == place else [pytest.mark.long])
    for number, label in enumerate(LABELS)
    for place, dialect in enumerate(DIALECTS)
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("label", "dialect"), EVERY)
def test_padding_removal_preserves_results(label: str, dialect: str, tmp_path: Path) -> None:
    model = exports.fused(label)
    padding_removal.remove(model)
    path = tmp_path / "model.onnx"
    files.write(lower.lower(model, dialect), path)
    feeds = exports.given(label)
    real = feeds["attention_mask"] != 0
    expected = [
        np.where(real[..., None], answer, 0) if answer.ndim == 3 else answer for answer in exports.answers(label)
    ]
    got = exports.run(path.read_bytes(), feeds)
    assert exports.difference([output[:4] for output in expected], [output[:4] for output in got]) < exports.TOLERANCE
    assert exports.difference(expected, got) < (0.01 if "tf2onnx" in label else exports.TOLERANCE)
