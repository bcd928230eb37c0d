"""Sparse vectors as a SparseEncoder of sentence-transformers gives them."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun
import tiny
from isorun.models import checkpoint
from isorun.models.tokenizer import TruncationWarning
from isorun.text.sparse_vectors import SparseVectors

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("splade", "all", {}),
    ("splade", "some", {"max_active_dims": 5}),
    ("splade-sum", "all", {}),
    ("splade-sum", "query", {"prompt_name": "query"}),
    ("splade-sum", "query", {"task": "query"}),
    ("splade-router", "all", {}),
    ("splade-router", "query", {"task": "query"}),
    ("splade-router", "document", {"task": "document"}),
]
CLOSE = {"rtol": 1e-6, "atol": 1e-5}  # sums over tokens reach 60
pytestmark = pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")


@pytest.mark.parametrize(("name", "key", "arguments"), CASES)
def test_vectors(name: str, key: str, arguments: dict[str, Any], retrieval: Path, retrieved: list[str]) -> None:
    expected = np.load(retrieval / name / "expected.npz")[key]
    with isorun.SparseEmbedder(retrieval / name, backend="ort-cpu") as embedder:
        vectors = embedder.embed(retrieved, **arguments)
        assert vectors.shape == expected.shape
        np.testing.assert_allclose(vectors.to_dense(), expected, **CLOSE)
        np.testing.assert_allclose(vectors.to_scipy().toarray(), expected, **CLOSE)
        concurrent = asyncio.run(embedder.aembed(retrieved, **arguments))
        np.testing.assert_allclose(concurrent.to_dense(), expected, **CLOSE)
        order = np.random.default_rng(0).permutation(len(retrieved))
        shuffled = embedder.embed([retrieved[position] for position in order], **arguments)
        np.testing.assert_allclose(shuffled.to_dense(), expected[order], **CLOSE)
        for row, dense in zip(vectors, expected, strict=True):
            assert (np.diff(row.indices) > 0).all()
            assert row.indices.tolist() == np.flatnonzero(dense).tolist()


def test_words_of_vectors(retrieval: Path, retrieved: list[str]) -> None:
    expected = np.load(retrieval / "splade" / "expected.npz")["words"].tolist()
    with isorun.SparseEmbedder(retrieval / "splade", backend="ort-cpu") as embedder:
        vectors = embedder.embed(retrieved[:3])
        decoded = embedder.decode(vectors, top_k=4)
        assert [[word for word, _ in row] for row in decoded] == expected
        whole = embedder.decode([vectors[0]])[0]
        assert whole[:4] == decoded[0]
        assert len(whole) == len(vectors[0].indices)
        stray = SparseVectors([isorun.SparseVector(np.array([10**6]), np.array([1], np.float32))], 2 * 10**6)
        with pytest.raises(isorun.InvalidArgument, match="1000000"):
            embedder.decode(stray)


def test_a_row_above_the_vocabulary_is_an_empty_word(retrieval: Path, retrieved: list[str], tmp_path: Path) -> None:
    folder = shutil.copytree(retrieval / "splade", tmp_path / "splade")
    with isorun.SparseEmbedder(folder, backend="ort-cpu") as embedder:
        vectors, last = embedder.embed(retrieved[:3]), embedder.dimension - 1
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    vocabulary.pop(next(word for word, number in vocabulary.items() if number == last))
    path.write_text(json.dumps(document), encoding="utf-8")
    with isorun.SparseEmbedder(folder, backend="ort-cpu") as embedder:
        decoded = embedder.decode(vectors)
    words = [[word for word, _ in row] for row in decoded]
    assert [("" in row) for row in words] == [last in row.indices for row in vectors]
    assert any("" in row for row in words)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", tiny.MASKS)
@pytest.mark.parametrize("padding", ["keep", "remove"])
@pytest.mark.parametrize("name", ["splade", "splade-sum"])
def test_pooling_in_the_graph(name: str, padding: str, kind: str, retrieval: Path) -> None:
    """Padding on either side, holes and a row without tokens, as pooling the logits gives it."""
    ids = np.random.default_rng(1).integers(5, 200, (3, 9))
    mask = tiny.mask(kind, 3, 9)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    with isorun.Session(retrieval / name, "ort-cpu", padding=padding) as session:
        logits, pooled = session.run(["logits", "sparse_embedding"], feeds)
    logarithms = np.log1p(np.maximum(logits, 0)) * mask[..., None]
    expected = logarithms.max(axis=1) if name == "splade" else np.log1p(logarithms).sum(axis=1)
    np.testing.assert_allclose(pooled, expected, **CLOSE)


def test_a_built_file(retrieval: Path, retrieved: list[str], tmp_path: Path) -> None:
    expected = np.load(retrieval / "splade-sum" / "expected.npz")["query"]
    path = tmp_path / "splade.onnx"
    checkpoint.build(retrieval / "splade-sum", path)
    with isorun.SparseEmbedder(path, backend="ort-cpu") as embedder:
        vectors = embedder.embed(retrieved, prompt_name="query")
    np.testing.assert_allclose(vectors.to_dense(), expected, **CLOSE)


def test_logits_without_a_pooling_are_pooled_by_their_maximum(retrieval: Path, retrieved: list[str]) -> None:
    expected = np.load(retrieval / "splade" / "expected.npz")["all"]
    with isorun.SparseEmbedder(retrieval / "base", backend="ort-cpu") as embedder:
        np.testing.assert_allclose(embedder.embed(retrieved).to_dense(), expected, **CLOSE)


def test_no_texts(retrieval: Path) -> None:
    with isorun.SparseEmbedder(retrieval / "splade-router", backend="ort-cpu") as embedder:
        for task in (None, "query"):
            vectors = embedder.embed([], task=task)
            assert (vectors.shape, vectors.to_scipy().shape) == ((0, embedder.dimension),) * 2
        assert asyncio.run(embedder.aembed([])).shape == (0, embedder.dimension)


def test_reports_truncation_of_both_routes(retrieval: Path) -> None:
    with isorun.SparseEmbedder(retrieval / "splade-router", backend="ort-cpu", max_length=4) as embedder:
        for task in ("query", "document"):
            with pytest.warns(TruncationWarning, match="truncated to 4"):
                embedder.embed(["one two three four five six"], task=task)


def test_rejects(retrieval: Path, tasks: Path, tmp_path: Path) -> None:
    with isorun.SparseEmbedder(retrieval / "splade-router", backend="ort-cpu") as embedder:
        with pytest.raises(isorun.InvalidArgument, match="no route for task='image'"):
            embedder.embed(["a"], task="image")
        for value in (0, -1, 2.5, True):
            with pytest.raises(isorun.InvalidArgument, match="max_active_dims"):
                embedder.embed(["a"], max_active_dims=value)
    with pytest.raises(isorun.UnsupportedModel, match=r"Use isorun\.SparseEmbedder"):
        isorun.Embedder(retrieval / "splade", backend="ort-cpu")
    with pytest.raises(isorun.InvalidModel, match="For dense vectors use Embedder"):
        isorun.SparseEmbedder(tasks / "bert-entities", backend="ort-cpu")
    folder = Path(shutil.copytree(retrieval / "splade-router", tmp_path / "router"))
    with pytest.raises(isorun.UnsupportedModel, match="routes"):
        checkpoint.build(folder, tmp_path / "model.onnx")
    router = json.loads((folder / "router_config.json").read_text(encoding="utf-8"))
    router["structure"]["document"] = ["missing"]
    (folder / "router_config.json").write_text(json.dumps(router))
    with pytest.raises(isorun.InvalidModel, match="'missing', which types does not have"):
        isorun.SparseEmbedder(folder, backend="ort-cpu")


@pytest.mark.parametrize("name", ["splade", "splade-router"])
def test_tokens_in_place_of_texts(name: str, retrieval: Path, retrieved: list[str]) -> None:
    with isorun.SparseEmbedder(retrieval / name, backend="ort-cpu") as embedder:
        expected = embedder.embed(retrieved, task="document").to_dense()
        tokens = embedder.encode(retrieved, prompt=embedder.prompts.get("document", ""))
        np.testing.assert_allclose(embedder.embed(tokens).to_dense(), expected, **CLOSE)
        np.testing.assert_allclose(asyncio.run(embedder.aembed(tokens)).to_dense(), expected, **CLOSE)
        with pytest.raises(isorun.InvalidArgument, match="encoded texts"):
            embedder.embed(tokens, task="query")
