"""Three kinds of embeddings as FlagEmbedding computes them for BGE-M3."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import isorun
from archives import unpack
from isorun.errors import InvalidModel
from isorun.models import checkpoint
from isorun.text.hybrid_embedder import HybridVectors

pytestmark = pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and what FlagEmbedding answers: ``make_hybrid.py``."""
    return unpack("hybrid", tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def texts(folder: Path) -> list[str]:
    listed: list[str] = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    return listed


def _check(vectors: HybridVectors, folder: Path, order: list[int]) -> None:
    expected = np.load(folder / "model" / "expected.npz")
    for row, position in enumerate(order):
        np.testing.assert_allclose(vectors.dense[row], expected[f"dense.{position}"], atol=1e-5)
        np.testing.assert_allclose(vectors.tokens[row], expected[f"tokens.{position}"], atol=1e-5)
        words = vectors.sparse[row]
        assert words.indices.tolist() == expected[f"words.{position}"].tolist()
        np.testing.assert_allclose(words.values, expected[f"weights.{position}"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_vectors_and_scores(backend: str, folder: Path, texts: list[str]) -> None:
    order = np.random.default_rng(0).permutation(len(texts)).tolist()
    positions = list(range(len(texts)))
    with isorun.HybridEmbedder(folder / "model", backend=backend) as embedder:
        vectors = embedder.embed(texts)
        _check(vectors, folder, positions)
        _check(embedder.embed([texts[position] for position in order]), folder, order)
        _check(embedder.embed(embedder.encode(texts)), folder, positions)
        _check(asyncio.run(embedder.aembed(texts)), folder, positions)
        scores = embedder.score(embedder.embed(texts[:2]), vectors)
    assert {kind.shape for kind in scores} == {(2, len(texts))}
    np.testing.assert_allclose(scores.dense, vectors.dense[:2] @ vectors.dense.T, atol=1e-5)
    weights = [dict(zip(*row, strict=True)) for row in vectors.sparse]
    products = [[sum(row[word] * other.get(word, 0) for word in row) for other in weights] for row in weights[:2]]
    np.testing.assert_allclose(scores.sparse, products, rtol=1e-5, atol=1e-4)
    best = [[(query @ other.T).max(axis=1).mean() for other in vectors.tokens] for query in vectors.tokens[:2]]
    np.testing.assert_allclose(scores.tokens, best, atol=1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_token_with_the_number_0_is_no_padding(deterministic: bool, folder: Path) -> None:
    with isorun.HybridEmbedder(folder / "model", backend="ort-cpu", deterministic=deterministic) as embedder:
        vectors = embedder.embed(embedder.encode_ids([[0, 5, 6, 0], [0, 5, 0, 0], [0, 5]]))
    assert [len(rows) for rows in vectors.tokens] == [3, 3, 1]


def test_warm_up_with_texts(folder: Path, texts: list[str]) -> None:
    with isorun.HybridEmbedder(folder / "model", backend="ort-cpu") as embedder:
        embedder.warmup(texts)
        assert len(embedder.embed(embedder.encode_ids([[0, 9, 2]])).tokens[0]) == 2


def test_no_texts(folder: Path) -> None:
    with isorun.HybridEmbedder(folder / "model", backend="ort-cpu") as embedder:
        vectors = embedder.embed([])
    assert (vectors.dense.shape, len(vectors.sparse), vectors.tokens) == ((0, 16), 0, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "sparse_linear.pt").unlink(), "sparse_linear.pt"),
        (lambda folder: (folder / "sparse_linear.pt").write_bytes(b"PK"), "sparse_linear.pt"),
        (lambda folder: shutil.copy(folder / "sparse_linear.pt", folder / "colbert_linear.pt"), None),
        (lambda folder: shutil.copy(folder / "colbert_linear.pt", folder / "sparse_linear.pt"), "one output"),
    ],
)
def test_rejects_other_layers(change: object, message: str | None, folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "model"
    shutil.copytree(folder / "model", copied)
    change(copied)  # type: ignore[operator]
    if message is None:  # a projection to one value is unusual, and valid
        with isorun.HybridEmbedder(copied, backend="ort-cpu") as embedder:
            assert embedder.embed(["a"]).tokens[0].shape[1] == 1
        return
    with pytest.raises(InvalidModel, match=message):
        isorun.HybridEmbedder(copied, backend="ort-cpu")


def test_needs_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    checkpoint.build(folder / "model", tmp_path / "model.onnx")
    with pytest.raises(InvalidModel, match="checkpoint"):
        isorun.HybridEmbedder(tmp_path / "model.onnx", backend="ort-cpu")
