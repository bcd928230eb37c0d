"""Scores of causal rerankers, as sentence-transformers and Qwen's model card compute them."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun
import tiny
from archives import unpack
from isorun.errors import InvalidFeeds, InvalidModel, UnsupportedModel
from isorun.models import checkpoint
from isorun.models.tokenizer import TruncationWarning

pytestmark = pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")
LIMIT = 250


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny rerankers, each with the scores of pairs: ``make_rerankers.py``."""
    return unpack("rerankers", tmp_path_factory.mktemp("rerankers"))


@pytest.fixture(scope="module")
def pairs(models: Path) -> list[tuple[str, str]]:
    return [(query, document) for query, document in json.loads((models / "pairs.json").read_text(encoding="utf-8"))]


@pytest.fixture
def copy(models: Path, tmp_path: Path) -> Path:
    """A copy of the model with modules."""
    folder = tmp_path / "model"
    shutil.copytree(models / "modules", folder)
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_scores_of_a_model_with_modules(backend: str, models: Path, pairs: list[tuple[str, str]]) -> None:
    expected = np.load(models / "modules" / "expected.npz")
    order = np.random.default_rng(0).permutation(len(pairs))
    with isorun.CrossEncoder(models / "modules", backend=backend) as encoder:
        np.testing.assert_allclose(encoder.predict(pairs), expected["scores"], atol=1e-5)
        np.testing.assert_allclose(encoder.predict(pairs, activation="Identity"), expected["logits"], atol=1e-5)
        shuffled = encoder.predict([pairs[position] for position in order])
        np.testing.assert_allclose(shuffled, expected["scores"][order], atol=1e-5)
        np.testing.assert_allclose(encoder.predict(encoder.encode(pairs)), expected["scores"], atol=1e-5)
        np.testing.assert_allclose(asyncio.run(encoder.apredict(pairs)), expected["scores"], atol=1e-5)
        ranked = encoder.rank(pairs[0][0], [document for _, document in pairs[:4]])
        assert len(ranked) == 4


@pytest.mark.parametrize("name", ["modules-llama", "modules-qwen2"])
def test_scores_of_other_families(name: str, models: Path, pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    expected = np.load(models / name / "expected.npz")
    with isorun.CrossEncoder(models / name, backend="ort-cpu") as encoder:
        np.testing.assert_allclose(encoder.predict(pairs), expected["scores"], rtol=1e-5, atol=1e-5)
        logits = encoder.predict(pairs, activation="Identity")
        np.testing.assert_allclose(logits, expected["logits"], rtol=1e-5, atol=1e-5)
    folder = tmp_path / "model"
    shutil.copytree(models / name, folder)
    (folder / "modules.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"no modules\.json"):
        isorun.CrossEncoder(folder, backend="ort-cpu")


def test_warm_up_with_pairs(models: Path, pairs: list[tuple[str, str]]) -> None:
    with isorun.CrossEncoder(models / "modules", backend="ort-cpu") as encoder:
        encoder.warmup(pairs)
        assert encoder.feeds(encoder.tokens(pairs)).keys() == {"input_ids", "attention_mask"}


def test_the_prompt_is_the_instruction(models: Path, pairs: list[tuple[str, str]]) -> None:
    expected = np.load(models / "modules" / "expected.npz")["prompted"]
    with isorun.CrossEncoder(models / "modules", prompt="Find it.", backend="ort-cpu") as encoder:
        np.testing.assert_allclose(encoder.predict(pairs), expected, atol=1e-5)
        longer = encoder.count_tokens(pairs[0])
    with isorun.CrossEncoder(models / "modules", backend="ort-cpu") as encoder:
        assert encoder.count_tokens(pairs[0]) < longer


def test_scores_as_the_model_card_of_qwen3_reranker(models: Path, pairs: list[tuple[str, str]]) -> None:
    expected = np.load(models / "qwen" / "expected.npz")["scores"]
    with isorun.CrossEncoder(models / "qwen", max_length=LIMIT, backend="ort-cpu") as encoder:
        np.testing.assert_allclose(encoder.predict(pairs), expected, atol=1e-5)
        with pytest.warns(TruncationWarning):
            encoder.predict(pairs[-2:])


def test_a_built_file_keeps_the_template(models: Path, pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    assert checkpoint.build(models / "modules", tmp_path / "model.onnx") == []
    expected = np.load(models / "modules" / "expected.npz")["scores"]
    with isorun.CrossEncoder(tmp_path / "model.onnx", backend="ort-cpu") as encoder:
        np.testing.assert_allclose(encoder.predict(pairs), expected, atol=1e-5)
    (tmp_path / "model.chat_template.jinja").unlink()
    with pytest.raises(InvalidModel, match="chat_template"):
        isorun.CrossEncoder(tmp_path / "model.onnx", backend="ort-cpu")


def test_the_template_may_be_in_the_configuration_of_the_tokenizer(copy: Path, pairs: list[tuple[str, str]]) -> None:
    template = (copy / "chat_template.jinja").read_text(encoding="utf-8")
    (copy / "chat_template.jinja").unlink()
    expected = np.load(copy / "expected.npz")["scores"]
    for stored in (template, [{"name": "default", "template": template}]):
        tiny.edit(copy / "tokenizer_config.json", chat_template=stored)
        with isorun.CrossEncoder(copy, backend="ort-cpu") as encoder:
            np.testing.assert_allclose(encoder.predict(pairs[:3]), expected[:3], atol=1e-5)


def test_one_word_may_make_the_score(copy: Path, pairs: list[tuple[str, str]]) -> None:
    words = json.loads((copy / "1_LogitScore/config.json").read_text(encoding="utf-8"))
    scores = []
    for true, false in ((words["true_token_id"], None), (words["false_token_id"], None)):
        tiny.edit(copy / "1_LogitScore/config.json", true_token_id=true, false_token_id=false)
        with isorun.CrossEncoder(copy, backend="ort-cpu") as encoder:
            scores.append(encoder.predict(pairs, activation="Identity"))
    np.testing.assert_allclose(scores[0] - scores[1], np.load(copy / "expected.npz")["logits"], atol=1e-4)


@pytest.mark.parametrize(
    ("template", "kind", "message"),
    [
        ("{% for m in messages %}", InvalidModel, "not a template"),
        ("{{ messages[0].content }}", UnsupportedModel, "document"),
        ("{{ raise_exception('no system role') }}", InvalidModel, "no system role"),
        ("{{ ''.__class__.__mro__ }}{{ messages }}", InvalidModel, "unsafe"),
    ],
)
def test_rejects_templates(template: str, kind: type[Exception], message: str, copy: Path) -> None:
    (copy / "chat_template.jinja").write_text(template)
    with pytest.raises(kind, match=message):
        isorun.CrossEncoder(copy, backend="ort-cpu")


@pytest.mark.parametrize(
    ("file", "change", "kind", "message"),
    [
        ("1_LogitScore/config.json", {"true_token_id": 999}, InvalidModel, "999"),
        ("1_LogitScore/config.json", {"true_token_id": -1}, InvalidModel, "true_token_id"),
        ("1_LogitScore/config.json", {"module_input_name": "logits"}, UnsupportedModel, "module_input_name"),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, UnsupportedModel, "text-generation"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {}}}, UnsupportedModel, "processing_kwargs"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}},
            UnsupportedModel,
            "modality_config",
        ),
        ("sentence_bert_config.json", {"modality_config": None}, UnsupportedModel, "modality_config"),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"chat_template": {"tools": []}}},
            UnsupportedModel,
            "tools",
        ),
        ("config.json", {"model_type": "phi3"}, UnsupportedModel, "phi3"),
    ],
)
def test_rejects_settings_by_name(
    file: str, change: dict[str, Any], kind: type[Exception], message: str, copy: Path
) -> None:
    tiny.edit(copy / file, **change)
    with pytest.raises(kind, match=message):
        isorun.CrossEncoder(copy, backend="ort-cpu")


def test_rejects_texts_without_a_document(models: Path) -> None:
    with (
        isorun.CrossEncoder(models / "modules", backend="ort-cpu") as encoder,
        pytest.raises(InvalidFeeds, match="pair"),
    ):
        encoder.predict(["a text"])
