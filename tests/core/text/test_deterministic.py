"""The same bits for a text alone and beside others, what is computed of the model's output included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import isorun
from archives import unpack

WORDS = ["a", "man", "is", "eating", "food", "the", "girl", "runs", "fast", "over", "hills", "and", "far", "away"]


def texts() -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, count)) for count in random.integers(0, 12, 40)]


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_weights_of_words(backend: str, tmp_path: Path) -> None:
    folder = unpack("retrieval", tmp_path) / "words"
    with isorun.Embedder(folder, backend=backend, deterministic=True) as embedder:
        together = embedder.embed(texts())
        assert all(np.array_equal(embedder.embed([text])[0], row) for text, row in zip(texts(), together, strict=True))
        assert np.array_equal(np.stack(list(embedder.embed_iter(texts()))), together)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_layers_of_a_hybrid_model(backend: str, tmp_path: Path) -> None:
    unpack("hybrid", tmp_path)
    folder = next(path.parent for path in tmp_path.rglob("colbert_linear.pt"))
    with isorun.HybridEmbedder(folder, backend=backend, deterministic=True) as embedder:
        together = embedder.embed(texts())
        for index, text in enumerate(texts()):
            alone = embedder.embed([text])
            assert np.array_equal(alone.dense[0], together.dense[index])
            assert np.array_equal(alone.tokens[0], together.tokens[index])
