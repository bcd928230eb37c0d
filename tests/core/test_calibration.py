"""Calibration: on feeds, on texts, on the sentences that come with isorun, or on random tokens with a warning."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import isorun
import small_bert
import tiny
from isorun.calibration import CalibrationWarning
from isorun.errors import InvalidFeeds, UnsupportedModel

ADDITION = """<ir_version: 10, opset_import: ["" : 17]>
addition (float[N] x, float[N] y) => (float[N] z) { z = Add (x, y) }"""
WIDE = {"hidden_size": 32, "intermediate_size": 48}
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]])


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.sum(one * other) / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bert.write(tmp_path_factory.mktemp("int8") / "model.onnx", **WIDE)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_int8_on_given_feeds(backend: str, model: Path, tmp_path: Path) -> None:
    samples = [small_bert.feeds(MASK, seed) for seed in range(12)]
    given = small_bert.feeds(MASK, 9)
    with isorun.Session(model, backend, cache_dir=tmp_path) as session:
        wanted = session.run(None, given)
    answers = {}
    for padding in ("keep", "remove"):
        with isorun.Session(
            model, backend, precision="int8", padding=padding, calibration=samples, cache_dir=tmp_path
        ) as session:
            assert "int8" in session.provenance.precision
            assert session.provenance.details["graph"]["int8"] == {
                "calibrated_on": "12 feeds",
                "batches": 12,
                "layers": 8,
            }
            answers[padding] = session.run(None, given)
    for got in answers.values():
        assert (
            cosine(got[0][MASK != 0], wanted[0][MASK != 0]) > 0.98
        )  # a model this narrow, of random weights, makes much of little
        assert cosine(got[1], wanted[1]) > 0.98
    assert cosine(answers["keep"][1], answers["remove"][1]) > 0.9999


def test_calibration_is_done_once_for_a_model_and_its_feeds(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"precision": "int8", "cache_dir": tmp_path, "backend": "ort-cpu"}
    isorun.Session(model, calibration=[small_bert.feeds(MASK)], **settings).close()
    monkeypatch.setattr("isorun.calibration._quantize", lambda *_, **__: pytest.fail("it was calibrated again"))
    isorun.Session(model, calibration=[small_bert.feeds(MASK)], **settings).close()
    with pytest.raises(pytest.fail.Exception):
        isorun.Session(model, calibration=[small_bert.feeds(MASK, 1)], **settings)


def test_a_model_with_a_tokenizer_takes_the_sentences_that_come_with_isorun(tokenizer: Path, tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "tiny")
    shutil.copy(tokenizer, folder / "tokenizer.json")
    with isorun.Session(folder, "ort-cpu", precision="int8", cache_dir=tmp_path) as session:
        assert session.provenance.details["graph"]["int8"]["calibrated_on"] == "isorun's sentences"
    with isorun.Session(
        folder, "ort-cpu", precision="int8", cache_dir=tmp_path, calibration=["a man", "a man is eating food"]
    ) as session:
        assert session.provenance.details["graph"]["int8"]["calibrated_on"] == "2 texts"


def test_without_a_tokenizer_it_warns(model: Path, tmp_path: Path) -> None:
    with pytest.warns(CalibrationWarning, match="random tokens"):
        isorun.Session(model, "ort-cpu", precision="int8", cache_dir=tmp_path).close()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "empty"),
        (["a text", small_bert.feeds(MASK)], "dict and str"),
        ([7], "int"),
        ([{"input_ids": MASK}], "attention_mask"),
    ],
)
def test_samples_that_are_none(samples: list[Any], message: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidFeeds, match=message):
        isorun.Session(model, "ort-cpu", precision="int8", calibration=samples, cache_dir=tmp_path)


def test_a_model_that_is_no_encoder_cannot_be_quantized(tmp_path: Path) -> None:
    path = tmp_path / "add.onnx"
    onnx.save(onnx.parser.parse_model(ADDITION), path)
    with pytest.raises(UnsupportedModel, match="no encoder"):
        isorun.Session(path, "ort-cpu", precision="int8", cache_dir=tmp_path)
