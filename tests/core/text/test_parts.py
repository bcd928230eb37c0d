"""Parts of a document that the model reads as a whole."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun
import served
from isorun.text import Tokenizer

DOCUMENT = "a b c. d e f g, h"
SPANS = [(0, 5), (7, 14), (0, len(DOCUMENT)), (8, 12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served.write_embedder(tmp_path_factory.mktemp("parts") / "embedder")


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Iterator[isorun.Embedder]:
    with isorun.Embedder(folder, backend="ort-cpu") as opened:
        yield opened


def expected(folder: Path, text: str, spans: list[tuple[int, int]]) -> np.ndarray:
    """By hand: the mean of the states of the tokens in each span, scaled to length 1."""
    with isorun.Session(folder, "ort-cpu") as session:
        tokens = Tokenizer(session).encode([text])
        (hidden,) = session.run(["last_hidden_state"], tokens.feeds(session))
    chosen = [
        [number for number, token in enumerate(tokens[0]) if not token.is_special and start <= token.start < end]
        for start, end in spans
    ]
    means = np.array([hidden[0, rows].mean(axis=0) for rows in chosen])
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def test_each_part_has_the_mean_of_its_tokens_in_context(embedder: isorun.Embedder, folder: Path) -> None:
    vectors = embedder.embed_parts(DOCUMENT, SPANS)
    np.testing.assert_allclose(vectors, expected(folder, DOCUMENT, SPANS), atol=1e-5)
    alone = embedder.embed([DOCUMENT[start:end] for start, end in SPANS])
    assert np.abs(vectors - alone).max() > 0.01


def test_a_prompt_comes_before_the_document_and_is_in_no_part(embedder: isorun.Embedder, folder: Path) -> None:
    vectors = embedder.embed_parts(DOCUMENT, SPANS, prompt_name="query", truncate_dim=8)
    shifted = [(start + 2, end + 2) for start, end in SPANS]
    whole = expected(folder, f"q {DOCUMENT}", shifted)[:, :8]
    np.testing.assert_allclose(vectors, whole, atol=1e-5)


def test_vectors_in_the_stored_type(folder: Path) -> None:
    with isorun.Embedder(folder, backend="ort-cpu", quantize="binary") as embedder:
        assert embedder.embed_parts(DOCUMENT, SPANS).dtype == embedder.embed([DOCUMENT]).dtype


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 1), (3, 3)], "Span 1 must begin before it ends"),
        ([(0, 99)], "within the 17 characters"),
        ([(-1, 2)], "Span 0"),
        ([(0, 1.5)], "pair of positions"),
        ([3], "pair of positions"),
        ([np.array(3)], "pair of positions"),
        ([(True, 2)], "pair of positions"),
        ([], "at least one"),
    ],
)
def test_wrong_spans(embedder: isorun.Embedder, spans: Any, message: str) -> None:
    with pytest.raises(isorun.InvalidArgument, match=message):
        embedder.embed_parts(DOCUMENT, spans)


def test_parts_that_no_token_stands_for(embedder: isorun.Embedder) -> None:
    with pytest.raises(isorun.InvalidFeeds, match="Span 1 has no token"):
        embedder.embed_parts("a b", [(0, 1), (1, 2)])
    long = "a " * 100
    with (
        pytest.warns(isorun.TruncationWarning),
        pytest.raises(isorun.InvalidFeeds, match=f"Span 1 .*the {embedder.max_length} tokens"),
    ):
        embedder.embed_parts(long, [(0, 3), (150, 160)])


def test_parts_that_are_cut_on_the_left(folder: Path, tmp_path: Path) -> None:
    copy = served.write_embedder(tmp_path / "left")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": "left", "model_max_length": 12}
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    document = " ".join("abcdefghijklmnopqrst")  # the model reads the last 10 letters, from character 20
    with isorun.Embedder(copy, backend="ort-cpu") as embedder, warnings.catch_warnings():
        warnings.simplefilter("ignore", isorun.TruncationWarning)
        assert embedder.embed_parts(document, [(20, 39), (19, 22)]).shape == (2, embedder.dimension)
        for span in ((0, 39), (0, 22), (0, 5), (17, 22)):
            with pytest.raises(isorun.InvalidFeeds, match=r"Span 0 .*the 12 tokens that the model reads"):
                embedder.embed_parts(document, [span])


def test_poolings_that_read_a_position_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = served.write_embedder(tmp_path / "cls")
    (copy / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    with (
        isorun.Embedder(copy, backend="ort-cpu") as embedder,
        pytest.raises(isorun.UnsupportedModel, match="this model pools cls"),
    ):
        embedder.embed_parts(DOCUMENT, SPANS)
