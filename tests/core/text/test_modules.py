"""Vectors of models with modules beside Pooling and Normalize, as sentence-transformers gives them."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import isorun
from isorun.errors import InvalidArgument, InvalidFeeds, UnsupportedModel
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


def _words(retrieval: Path, folder: Path, order: tuple[int, ...], **pooling: object) -> Path:
    """The model with weights of words, its modules in another order, ``-1`` for a normalization of tokens."""
    shutil.copytree(retrieval / "words", folder)
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    kinds = {"path": "9_Normalize", "type": "sentence_transformers.models.Normalize"}
    listed = [kinds if index == -1 else modules[index] for index in order]
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    (folder / "9_Normalize").mkdir()
    names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    (folder / "9_Normalize" / "config.json").write_text(json.dumps(names))
    path = folder / modules[2]["path"] / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **pooling}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("order", "pooling"),
    [
        ((0, 1, -1, 2), {}),  # the weights would change what is normalized
        ((0, 1, 1, 2), {}),
        ((0, 1, 2), {"pooling_mode": "max"}),
        ((0, 1, 2), {"include_prompt": False}),  # the sum of the weights would include the prompt's
    ],
)
def test_rejects_weights_that_a_mean_does_not_apply(
    order: tuple[int, ...], pooling: dict[str, object], retrieval: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match="WordWeights"):
        isorun.Embedder(_words(retrieval, tmp_path / "model", order, **pooling), backend="ort-cpu")


def test_weights_of_words_need_a_mean(retrieval: Path, tmp_path: Path) -> None:
    with isorun.Embedder(_words(retrieval, tmp_path / "model", (0, -1, 1, 2)), backend="ort-cpu") as embedder:
        assert embedder.embed(["a man"]).shape == (1, embedder.dimension)
    with pytest.raises(InvalidArgument, match=r"pooling must be mean or mean_sqrt_len_tokens.*'cls'"):
        isorun.Embedder(retrieval / "words", pooling=("mean", "cls"), backend="ort-cpu")


def test_a_token_without_a_weight_is_named(retrieval: Path) -> None:
    with isorun.Embedder(retrieval / "words", backend="ort-cpu") as embedder:
        words = embedder.tokenizer.library.get_vocab_size()
        with pytest.raises(InvalidFeeds, match=rf"from 0 to {words - 1}.*got {words}"):
            embedder.embed(embedder.encode_ids([[2, words, 3]]))
