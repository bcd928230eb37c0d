"""Vectors of models with modules beside Pooling and Normalize, as sentence-transformers gives them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

import isorun
from isorun.errors import InvalidArgument, InvalidFeeds
from isorun.models import checkpoint
from isorun.text import Tokenizer


@pytest.mark.parametrize("name", ["static", "words"])
@pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")
def test_vectors(name: str, retrieval: Path, retrieved: list[str], tmp_path: Path) -> None:
    """A table of words with a LayerNorm, and WordWeights before a mean; dense layers with a residual connection."""
    expected = np.load(retrieval / name / "expected.npz")["all"]
    with isorun.Embedder(retrieval / name, backend="ort-cpu") as embedder:
        order = np.random.default_rng(0).permutation(len(retrieved))
        vectors = embedder.embed([retrieved[position] for position in order])
        np.testing.assert_allclose(vectors, expected[order], rtol=0, atol=1e-5)
        np.testing.assert_allclose(asyncio.run(embedder.aembed(retrieved)), expected, rtol=0, atol=1e-5)
    if name == "words":
        checkpoint.build(retrieval / name, tmp_path / "model.onnx")
        with isorun.Embedder(tmp_path / "model.onnx", backend="ort-cpu") as embedder:
            np.testing.assert_allclose(embedder.embed(retrieved), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("key", "task"), [("all", None), ("query", "query"), ("document", "document")])
@pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")
def test_routes(key: str, task: str | None, retrieval: Path, retrieved: list[str]) -> None:
    expected = np.load(retrieval / "router" / "expected.npz")[key]
    with isorun.Embedder(retrieval / "router", task=task, backend="ort-cpu") as embedder:
        np.testing.assert_allclose(embedder.embed(retrieved), expected, atol=1e-5)
        np.testing.assert_allclose(embedder.embed(embedder.encode(retrieved)), expected, atol=1e-5)
        np.testing.assert_allclose(asyncio.run(embedder.aembed(retrieved)), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["router", "words"])
def test_rejects_an_unknown_task(name: str, retrieval: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"task.*'query'"):
        isorun.Embedder(retrieval / name, task="passage", backend="ort-cpu")


def test_a_pooling_has_no_effect_on_static_vectors(retrieval: Path) -> None:
    for pooling in ("max", ("mean", "max")):
        with pytest.raises(InvalidArgument, match=r"pooling=.*no effect"):
            isorun.Embedder(retrieval / "static", pooling=pooling, backend="ort-cpu")
    isorun.Embedder(retrieval / "static", pooling="mean", backend="ort-cpu").close()


def test_a_tokenizer_of_static_vectors_adds_no_special_tokens(retrieval: Path) -> None:
    folder = retrieval / "static"
    with isorun.Embedder(folder, backend="ort-cpu") as embedder, isorun.Session(folder, "ort-cpu") as session:
        tokens = Tokenizer(session).encode(["a man"]).arrays["input_ids"]
        np.testing.assert_array_equal(tokens, embedder.tokens(["a man"])["input_ids"])


def test_a_token_without_a_weight_is_named(retrieval: Path) -> None:
    with isorun.Embedder(retrieval / "words", backend="ort-cpu") as embedder:
        words = embedder.tokenizer.library.get_vocab_size()
        with pytest.raises(InvalidFeeds, match=rf"from 0 to {words - 1}.*got {words}"):
            embedder.embed(embedder.encode_ids([[2, words, 3]]))
