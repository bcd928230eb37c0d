"""Where a text model's files come from: folders, built files, downloads, Hugging Face's cache."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants

import hub
import isorun
import sentence_models
from isorun.models import checkpoint
from isorun.models import hub as downloads

TEXTS = ["ab ba", "a", "Ab  cab, bac!", "é b", "a b c a b c a b"]
pytestmark = pytest.mark.filterwarnings(
    "ignore::isorun.models.tokenizer.TruncationWarning", "ignore::isorun.models.checkpoint.CheckpointWarning"
)


def embedded(model: str | Path, **options: Any) -> np.ndarray:
    with isorun.Embedder(model, backend="ort-cpu", **options) as embedder:
        return embedder.embed(TEXTS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "declared"),
    [
        *(("bert", "BertTokenizer"), ("roberta", "RobertaTokenizer"), ("xlm-r", "XLMRobertaTokenizer")),
        ("qwen3", "Qwen2Tokenizer"),
    ],
)
def test_a_built_file_embeds_as_its_folder(tmp_path: Path, name: str, declared: str) -> None:
    folder = sentence_models.write_sentence_model(tmp_path, name, declared)
    expected = embedded(folder)
    assert len(np.unique(expected.round(3), axis=0)) > 3, "the texts differ"
    (tmp_path / "alone").mkdir()
    checkpoint.build(folder, tmp_path / "alone" / "model.onnx")
    shutil.rmtree(folder)
    np.testing.assert_array_equal(embedded(tmp_path / "alone" / "model.onnx"), expected)


@pytest.mark.parametrize("labels", [1, 3])
def test_a_built_file_scores_as_its_folder(tmp_path: Path, tokenizer: Path, labels: int) -> None:
    folder = sentence_models.write_reranker(tokenizer, tmp_path / "reranker", labels)
    settings = {"activation_fn": "torch.nn.modules.activation.Tanh", "prompts": {"a": "bread "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps({**settings, "default_prompt_name": "a"}))
    (tmp_path / "alone").mkdir()
    checkpoint.build(folder, tmp_path / "alone" / "model.onnx")
    results = []
    for model in (folder, tmp_path / "alone" / "model.onnx"):
        with isorun.CrossEncoder(model, backend="ort-cpu") as encoder:
            results.append((encoder.predict(sentence_models.WORDS).tolist(), encoder.labels, encoder.max_length))
        shutil.rmtree(folder, ignore_errors=True)
    assert results[0] == results[1]


def test_embeds_with_a_model_in_the_cache_of_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files are links to blobs; those of modules too."""
    folder = sentence_models.write_sentence_model(tmp_path)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.write_cache(tmp_path / "hf", "org/some.model", files)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    np.testing.assert_array_equal(embedded("org/some.model"), embedded(folder))


def test_a_download_lasts_as_long_as_its_model_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sentence_models.write_sentence_model(tmp_path)
    kept: list[Path] = []

    def download(identity: str, scratch: Path, progress: object) -> Path:
        kept.append(scratch)
        return Path(shutil.copytree(folder, scratch))

    monkeypatch.setattr(downloads, "_in_hub_cache", lambda identity: None)
    monkeypatch.setattr(downloads, "_from_hub", download)
    with isorun.Embedder("org/some.model", cache_dir=False, backend="ort-cpu") as embedder:
        np.testing.assert_array_equal(embedder.embed(TEXTS), embedded(folder))
        assert embedder.folder.is_dir()
    assert not embedder.folder.exists()
    assert len(kept) == 1
