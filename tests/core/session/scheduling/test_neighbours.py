"""Models in which a row's results depend on the other rows of its batch: they are not batched unless asked."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import isorun
from isorun.tuning import concurrency

# The scale of the quantization covers the whole batch: the text with the large vector takes the others' precision.
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[B, S] input_ids, int64[B, S] attention_mask) => (float[B, S, 4] last_hidden_state)
<float[3, 4] table = {0, 0, 0, 0, 0.3, 0.5, 0.7, 0.9, 90, 70, 50, 30}>
{ x = Gather (table, input_ids)
  q, s, z = DynamicQuantizeLinear (x)  last_hidden_state = DequantizeLinear (q, s, z) }"""
IDS = ([1, 1], [2, 2], [1, 1])
ROWS = [{"input_ids": np.array(ids), "attention_mask": np.ones(len(ids), np.int64)} for ids in IDS]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "model.onnx")
    tokenizer = Tokenizer(models.WordLevel({"[PAD]": 0, "small": 1, "large": 2}, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]"}))
    return tmp_path / "model.onnx"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [record.getMessage() for record in records if record.name == "isorun"]


def alone(session: isorun.Session) -> list[Any]:
    return [session.run(None, {name: array[None] for name, array in row.items()})[0][0] for row in ROWS]


def test_map_runs_requests_one_at_a_time_and_warns_once(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with isorun.Session(model, "ort-cpu") as session:
        for _ in range(2):
            for (result,), expected in zip(session.map(ROWS), alone(session), strict=True):
                np.testing.assert_array_equal(result, expected)
        (message,) = warnings_of(caplog)
        assert "DynamicQuantizeLinear" in message
        assert session.model_info.mixes_rows == "DynamicQuantizeLinear"
        assert session.provenance.details["rows"]["mixed_by"] == "DynamicQuantizeLinear"


def test_map_batches_if_asked(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    with isorun.Session(model, "ort-cpu") as session:
        batch = {name: np.stack([row[name] for row in ROWS]) for name in ROWS[0]}
        results = [result for (result,) in session.map(ROWS, max_tokens=100, max_wait=5.0)]
        np.testing.assert_array_equal(results, session.run(None, batch)[0])
        assert not np.array_equal(results[0], alone(session)[0])
    assert warnings_of(caplog) == []


def test_arun_does_not_share_batches(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "remembered", lambda subject: concurrency.ConcurrencyPlan(1, None, 512))
    with isorun.Session(model, "ort-cpu") as session:

        async def work() -> list[Any]:
            rows = [{name: array[None] for name, array in row.items()} for row in ROWS]
            return await asyncio.gather(*(session.arun(None, row) for row in rows))

        for (result,), expected in zip(asyncio.run(work()), alone(session), strict=True):
            np.testing.assert_array_equal(result[0], expected)
    assert len(warnings_of(caplog)) == 1


def test_warmup_measures_no_batches(model: Path) -> None:
    with isorun.Session(model, "ort-cpu", threads=2) as session:
        assert session.warmup([(1, 2)]).batch_tokens == 0


def test_an_embedder_embeds_one_text_at_a_time_unless_asked(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["small small", "large large"]
    with isorun.Embedder(model, pooling="mean", backend="ort-cpu") as embedder:
        expected = np.concatenate([embedder.embed([text]) for text in texts])
        np.testing.assert_array_equal(embedder.embed(texts), expected)
        np.testing.assert_array_equal(asyncio.run(embedder.aembed(texts)), expected)
    assert len(warnings_of(caplog)) == 1
    with isorun.Embedder(model, pooling="mean", backend="ort-cpu", batch_tokens=4096) as embedder:
        assert not np.array_equal(embedder.embed(texts), expected)
    assert len(warnings_of(caplog)) == 1


def test_independent_models_are_batched_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = TEXT.replace("q, s, z = DynamicQuantizeLinear (x)  last_hidden_state = DequantizeLinear (q, s, z)", "")
    onnx.save(onnx.parser.parse_model(text.replace("x =", "last_hidden_state =")), tmp_path / "plain.onnx")
    with isorun.Session(tmp_path / "plain.onnx", "ort-cpu") as session:
        list(session.map(ROWS))
        assert session.model_info.mixes_rows == ""
        assert "rows" not in session.provenance.details
    assert warnings_of(caplog) == []
