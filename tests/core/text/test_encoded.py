"""Texts as tokens: the same results as for the texts, with the prompt, pooling and limits of the model."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import isorun
from isorun.errors import InvalidArgument, InvalidFeeds
from sentence_models import TEXTS

pytestmark = pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")


@pytest.fixture(scope="module")
def embedder(minilm: Path) -> Iterator[isorun.Embedder]:
    with isorun.Embedder(minilm, backend="ort-cpu", max_length=24) as opened:
        yield opened


@pytest.fixture(scope="module")
def vectors(embedder: isorun.Embedder) -> np.ndarray:
    return embedder.embed(TEXTS)


def test_tokens_give_the_vectors_of_their_texts(embedder: isorun.Embedder, vectors: np.ndarray) -> None:
    encoded = embedder.encode(TEXTS)
    assert (len(encoded), encoded.truncated, max(encoded.lengths)) == (len(TEXTS), [4], 24)
    np.testing.assert_allclose(embedder.embed(encoded), vectors, atol=1e-6)
    np.testing.assert_allclose(asyncio.run(embedder.aembed(encoded)), vectors, atol=1e-6)


def test_token_ids_give_the_vectors_of_their_texts(embedder: isorun.Embedder, vectors: np.ndarray) -> None:
    ids = [list(item.ids) for item in embedder.encode(TEXTS).items]
    encoded = embedder.encode_ids([np.array(ids[0]), *ids[1:]])
    np.testing.assert_allclose(asyncio.run(embedder.aembed(encoded)), vectors, atol=1e-6)
    np.testing.assert_allclose(embedder.embed(encoded), vectors, atol=1e-6)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ("ab", "list of token ids"),
        ([1.5], "list of token ids"),
        ([True], "list of token ids"),
        ([[1]], "list of token ids"),
        ([], "no token ids"),
        ([-1], "vocabulary"),
        ([2**40], "vocabulary"),
        ([101] * 25, "at most 24"),
    ],
)
def test_rejects_invalid_token_ids(embedder: isorun.Embedder, ids: list[int], message: str) -> None:
    with pytest.raises(InvalidFeeds, match=f"Text 1 .*{message}"):
        embedder.encode_ids([[101], ids])


def test_rejects_token_ids_outside_the_vocabulary(embedder: isorun.Embedder) -> None:
    with pytest.raises(InvalidFeeds, match="embedding table"):
        asyncio.run(embedder.aembed(embedder.encode_ids([[101, 99_999_999]])))


def test_prompts_belong_to_the_encoding(variant: Path) -> None:
    with isorun.Embedder(variant, backend="ort-cpu") as embedder:
        for name in (None, "document"):
            encoded = embedder.encode(TEXTS, prompt_name=name)
            np.testing.assert_allclose(embedder.embed(encoded), embedder.embed(TEXTS, prompt_name=name), atol=1e-6)
        with pytest.raises(InvalidArgument, match="no effect on encoded texts"):
            embedder.embed(encoded, prompt_name="document")


def test_token_ids_do_not_tell_a_prompt_that_pooling_leaves_out(variant: Path) -> None:
    with isorun.Embedder(variant, backend="ort-cpu") as embedder:
        ids = [list(item.ids) for item in embedder.encode(TEXTS).items]
        with pytest.raises(InvalidFeeds, match="include_prompt"):
            embedder.encode_ids(ids)
    with isorun.Embedder(variant, backend="ort-cpu", prompts={"own": ""}) as embedder:  # which has none then
        ids = [list(item.ids) for item in embedder.encode(TEXTS).items]
        np.testing.assert_allclose(embedder.embed(embedder.encode_ids(ids)), embedder.embed(TEXTS), atol=1e-6)


def test_each_call_may_normalize_and_truncate(embedder: isorun.Embedder, vectors: np.ndarray) -> None:
    assert embedder.normalizes
    lengths = np.linalg.norm(embedder.embed(TEXTS, normalize=False), axis=1)
    assert abs(lengths - 1).min() > 0.01
    first = vectors[:, :8]
    np.testing.assert_allclose(embedder.embed(TEXTS, truncate_dim=8), first, atol=1e-6)
    units = first / np.linalg.norm(first, axis=1, keepdims=True)
    cut = asyncio.run(embedder.aembed(TEXTS, truncate_dim=8, normalize=True))
    np.testing.assert_allclose(cut, units, atol=1e-6)
    for dimensions in (0, 385, True):
        with pytest.raises(InvalidArgument, match="from 1 to 384"):
            embedder.embed(TEXTS, truncate_dim=dimensions)


def test_no_texts(embedder: isorun.Embedder) -> None:
    assert embedder.embed(embedder.encode([])).shape == (0, 384)
    assert asyncio.run(embedder.aembed(embedder.encode_ids([]))).shape == (0, 384)


def test_scores_of_tokens_equal_those_of_texts(tasks: Path) -> None:
    pairs = [("a company", "in New York"), "word", ("", "Berlin")]
    with isorun.Classifier(tasks / "bert-classes-multi_label_classification", backend="ort-cpu") as classifier:
        encoded = classifier.encode(pairs)
        np.testing.assert_allclose(classifier.scores(encoded), classifier.scores(pairs), atol=1e-6)
        logits = asyncio.run(classifier.aclassify(encoded, function="none", top_k=None))
        best = [row[0].score for row in logits]
        np.testing.assert_allclose(1 / (1 + np.exp(-np.array(best))), classifier.scores(pairs).max(axis=1), atol=1e-6)
        with pytest.raises(InvalidArgument, match="function 'nothing'"):
            classifier.scores(pairs, function="nothing")
    with isorun.CrossEncoder(tasks / "bert-classes-regression", backend="ort-cpu") as encoder:
        scores = encoder.predict(encoder.encode(pairs))
        np.testing.assert_allclose(scores, encoder.predict(pairs), atol=1e-6)
        logits = asyncio.run(encoder.apredict(encoder.encode(pairs), activation="Identity"))
        np.testing.assert_allclose(1 / (1 + np.exp(-logits)), scores, atol=1e-6)
        with pytest.raises(InvalidArgument, match="activation 'none'"):
            encoder.predict(pairs, activation="none")


def test_a_length_above_the_models_limit_is_an_error(minilm):
    with pytest.raises(isorun.InvalidArgument, match="at most 512, the model's limit, got 1000"):
        isorun.Embedder(minilm, backend="ort-cpu", max_length=1000)
