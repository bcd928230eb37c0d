"""``isorun.CrossEncoder`` against recorded answers of sentence-transformers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import isorun
import sentence_models
from isorun.errors import InvalidArgument, InvalidModel, UnsupportedModel
from sentence_models import WORDS

TOLERANCE = 1e-5

pytestmark = pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")


@pytest.mark.parametrize("labels", [1, 3])
def test_equals_sentence_transformers(
    labels: int, tokenizer: Path, tmp_path: Path, golden: dict[str, np.ndarray]
) -> None:
    folder = sentence_models.write_reranker(tokenizer, tmp_path / "reranker", labels)
    with isorun.CrossEncoder(folder, backend="ort-cpu") as encoder:
        scores = encoder.predict(WORDS)
        np.testing.assert_allclose(scores, golden[f"scores-{labels}"], atol=TOLERANCE)
        np.testing.assert_allclose(asyncio.run(encoder.apredict(WORDS)), scores, atol=TOLERANCE)
        assert encoder.labels == [f"class {index}" for index in range(labels)]
        if labels == 3:
            shares = encoder.predict(WORDS, softmax=True)
            np.testing.assert_allclose(shares, np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True), rtol=1e-5)
            with pytest.raises(UnsupportedModel, match="one label, got one with 3"):
                encoder.rank("a", ["b"])


def test_rank_sorts_documents(tokenizer: Path, tmp_path: Path) -> None:
    folder = sentence_models.write_reranker(tokenizer, tmp_path / "reranker", 1)
    documents = ["bread", "a man", "eats a man"]
    with isorun.CrossEncoder(folder, backend="ort-cpu", activation="Identity") as encoder:
        scores = encoder.predict([("man", document) for document in documents])
        ranked = encoder.rank("man", documents)
        assert [document.position for document in ranked] == np.argsort(-scores).tolist()
        assert ranked[0].text == documents[ranked[0].position]
        assert ranked[0].score == max(scores)
        assert encoder.rank("man", documents, top_k=1) == ranked[:1]


def test_rejects_models_without_logits_and_unknown_activations(minilm_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="no output 'logits'"):
        isorun.CrossEncoder(minilm_model, backend="ort-cpu")
    with pytest.raises(InvalidArgument, match="activation 'softmx'"):
        isorun.CrossEncoder(minilm_model, activation="softmx")
