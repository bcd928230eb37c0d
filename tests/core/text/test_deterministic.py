"""The same bits for a text alone and beside others, what is computed of the model's output included."""

from pathlib import Path

import numpy as np
import pytest

import isorun
from archives import unpack
from isorun.graph import pipeline
from isorun.graph.io import shared
from isorun.models import checkpoint

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


@pytest.mark.parametrize("name", ["splade-sum", "splade"])
def test_a_sum_over_tokens_in_the_graph(name: str, tmp_path: Path) -> None:
    """Its order depends on the width of the batch, so rows run one at a time; that of a maximum does not."""
    folder = unpack("retrieval", tmp_path) / name
    with isorun.SparseEmbedder(folder, backend="ort-cpu", deterministic=True) as embedder:
        alone = [embedder.embed([text]).to_dense()[0] for text in texts()]
        np.testing.assert_array_equal(alone, embedder.embed(texts()).to_dense())
        details = embedder.session.provenance.details
        assert details.get("rows") == ("one at a time" if name == "splade-sum" else None)


def test_logits_of_the_first_token(tmp_path: Path) -> None:
    """Nothing else of the last layer is read: its attention would sum over the width of the batch."""
    folder = unpack("tasks", tmp_path) / "bert-classes-None"
    several = [" ".join(texts()[:count]) for count in range(1, 9)]
    with isorun.Classifier(folder, backend="ort-cpu", deterministic=True) as classifier:
        together = classifier.scores(several, function="none")
        alone = [classifier.scores([text], function="none")[0] for text in several]
        np.testing.assert_array_equal(alone, together)
    with isorun.Classifier(folder, backend="ort-cpu") as classifier:
        np.testing.assert_allclose(classifier.scores(several, function="none"), together, atol=1e-5)


def test_a_file_that_was_fused_for_one_position_is_refused(tmp_path: Path) -> None:
    checkpoint.build(unpack("tasks", tmp_path) / "bert-classes-None", tmp_path / "built.onnx")
    with isorun.Session(tmp_path / "built.onnx", "ort-cpu", outputs=["logits"], deterministic=True):
        pass
    shared.write(pipeline.read(tmp_path / "built.onnx", ["logits"]).model, tmp_path / "fused.onnx")
    with pytest.raises(isorun.UnsupportedModel, match="Open the file that it was made from"):
        isorun.Session(tmp_path / "fused.onnx", "ort-cpu", deterministic=True)
