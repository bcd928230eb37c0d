"""Every method that reads texts accepts and rejects the same collections, with the same results."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isorun
import sentence_models
from columns import Column, Frame
from isolation import wait_until
from isorun.errors import InvalidArgument, InvalidFeeds, IsorunError

TEXTS = ["bread", "a man", "eats a man"]
PAIRS = [("man", text) for text in TEXTS]


@pytest.fixture(scope="module")
def embedder(bert: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[isorun.Embedder]:
    folder = tmp_path_factory.mktemp("embedder")
    (folder / "model.onnx").write_bytes(bert.read_bytes())
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    with isorun.Embedder(folder / "model.onnx", backend="ort-cpu", pooling="mean", prompts={"p": "eats "}) as opened:
        yield opened


@pytest.fixture(scope="module")
def reranker(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[isorun.CrossEncoder]:
    folder = sentence_models.write_reranker(tokenizer, tmp_path_factory.mktemp("models") / "reranker", 1)
    with isorun.CrossEncoder(folder, backend="ort-cpu") as opened:
        yield opened


def calls_on_texts(embedder: isorun.Embedder) -> dict[str, Callable[[Any], Any]]:
    return {
        "embed": embedder.embed,
        "aembed": lambda texts: asyncio.run(embedder.aembed(texts)),
        "embed_iter": lambda texts: np.array(list(embedder.embed_iter(texts))),
    }


def calls_on_pairs(reranker: isorun.CrossEncoder) -> dict[str, Callable[[Any], Any]]:
    return {"predict": reranker.predict, "apredict": lambda texts: asyncio.run(reranker.apredict(texts))}


COLLECTIONS: dict[str, Callable[[], Any]] = {
    "tuple": lambda: tuple(TEXTS),
    "generator": lambda: (text for text in TEXTS),
    "array": lambda: np.array(TEXTS),
    "array of objects": lambda: np.array(TEXTS, object),
    "column": lambda: Column(TEXTS, "to_list"),
}


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_collections_give_the_results_of_a_list(
    embedder: isorun.Embedder, reranker: isorun.CrossEncoder, collection: str
) -> None:
    make = COLLECTIONS[collection]
    for call in calls_on_texts(embedder).values():
        np.testing.assert_allclose(call(make()), embedder.embed(TEXTS), atol=1e-6)
    for call in calls_on_pairs(reranker).values():
        np.testing.assert_allclose(call(make()), reranker.predict(TEXTS), atol=1e-6)
    ranked = reranker.rank("man", TEXTS)
    assert reranker.rank("man", make()) == ranked
    awaited = asyncio.run(reranker.arank("man", make()))
    assert [(item.position, item.text) for item in awaited] == [(item.position, item.text) for item in ranked]
    np.testing.assert_array_equal(embedder.tokens(make())["input_ids"], embedder.tokens(TEXTS)["input_ids"])
    embedder.warmup(make())


INVALID = [
    "abc",
    b"abc",
    None,
    3,
    {"texts": ["a"]},
    {"a"},
    Frame(),
    np.array("a"),
    np.array([TEXTS]),
    np.arange(3),
    ["a", None],
    ["a", float("nan")],
    ["a", b"b"],
    ["a", ["b", 3]],
    ["a", "\udcff"],
]


@pytest.mark.parametrize("texts", INVALID, ids=lambda value: type(value).__name__)
def test_invalid_collections_are_the_same_error_everywhere(
    embedder: isorun.Embedder, reranker: isorun.CrossEncoder, texts: Any
) -> None:
    for calls in (calls_on_texts(embedder), calls_on_pairs(reranker)):
        messages = set()
        for call in calls.values():
            with pytest.raises((InvalidArgument, InvalidFeeds)) as caught:
                call(texts)
            messages.add(str(caught.value))
        assert len(messages) == 1
    for call in (
        lambda: reranker.rank("man", texts),
        lambda: asyncio.run(reranker.arank("man", texts)),
        lambda: embedder.tokens(texts),
        lambda: embedder.warmup(3 if texts is None else texts),  # None stands for a range of lengths
    ):
        with pytest.raises((InvalidArgument, InvalidFeeds)):
            call()


def test_pairs_are_for_rerankers(embedder: isorun.Embedder, reranker: isorun.CrossEncoder) -> None:
    expected = reranker.predict(PAIRS)
    for call in calls_on_pairs(reranker).values():
        np.testing.assert_allclose(call([list(pair) for pair in PAIRS]), expected, atol=1e-6)
        with pytest.raises(InvalidArgument, match="a tuple of two str"):
            call(("query", "document"))
    for call in (*calls_on_texts(embedder).values(), lambda texts: embedder.embed(texts, prompt_name="p")):
        with pytest.raises(InvalidFeeds, match="Text 0 must be a str, got tuple"):
            call(PAIRS)
    assert reranker.count_tokens(("a", "man")) == reranker.count_tokens(["a", "man"]) == 5  # type: ignore[arg-type]
    assert embedder.count_tokens("a man") == 4


@pytest.mark.parametrize("text", [["a"], None, 3, ("a", "b"), b"a", "\ud800"], ids=lambda value: type(value).__name__)
def test_a_single_text_is_a_str(embedder: isorun.Embedder, reranker: isorun.CrossEncoder, text: Any) -> None:
    with pytest.raises(InvalidFeeds, match=r"^text "):
        embedder.count_tokens(text)
    with pytest.raises(InvalidFeeds, match=r"^query "):
        reranker.rank(text, TEXTS)
    if text is not None:
        with pytest.raises(InvalidFeeds, match=r"^prompt "):
            embedder.embed(TEXTS, prompt=text)


def test_documents_are_not_letters(reranker: isorun.CrossEncoder) -> None:
    for call in (lambda: reranker.rank("a", "bcd"), lambda: asyncio.run(reranker.arank("a", "bcd"))):
        with pytest.raises(InvalidArgument, match=r"^documents must be a list of str, got a single str"):
            call()


def test_a_stream_is_validated_at_the_call_and_its_items_when_read(
    embedder: isorun.Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isorun.text import model

    monkeypatch.setattr(model, "_WINDOW", 2)
    with pytest.raises(InvalidArgument, match="got a single str"):
        embedder.embed_iter("abc")
    with pytest.raises(InvalidArgument, match="Unknown prompt"):
        embedder.embed_iter(TEXTS, prompt_name="q")
    with pytest.raises(InvalidFeeds, match=r"^Text 3 must be a str, got a missing value"):
        list(embedder.embed_iter(iter([*TEXTS, None])))  # type: ignore[list-item]


def test_the_length_can_be_changed(embedder: isorun.Embedder) -> None:
    opened = embedder.max_length
    assert opened is not None
    try:
        embedder.limit_length(3)
        with pytest.warns(isorun.models.tokenizer.TruncationWarning, match="more than 3 tokens"):
            assert embedder.tokens(TEXTS)["input_ids"].shape == (3, 3)
        for value, message in (
            (0, "at least 1, got 0"),
            (2.5, "got 2.5"),
            (True, "True"),
            (opened + 1, f"{opened}, the"),
        ):
            with pytest.raises(IsorunError, match=message):
                embedder.limit_length(value)  # type: ignore[arg-type]
    finally:
        embedder.limit_length(None)
    assert embedder.max_length == opened


@pytest.fixture
def busy(bert: Path, tokenizer: Path, tmp_path: Path) -> Iterator[isorun.Embedder]:
    """An embedder with a short queue."""
    (tmp_path / "model.onnx").write_bytes(bert.read_bytes())
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    with isorun.Embedder(tmp_path / "model.onnx", backend="ort-cpu", pooling="mean", max_queue=4, threads=1) as opened:
        yield opened


def test_a_call_of_more_texts_than_the_queue_holds_is_answered(busy: isorun.Embedder) -> None:
    texts = TEXTS * 30
    np.testing.assert_allclose(asyncio.run(busy.aembed(texts)), busy.embed(texts), atol=1e-5)
    assert busy.session.metrics().rejected == 0


def test_a_rejected_call_runs_nothing(busy: isorun.Embedder) -> None:
    async def call() -> None:
        first = asyncio.create_task(busy.aembed(TEXTS * 100))
        while not busy.session.metrics().waiting:
            await asyncio.sleep(0)
        with pytest.raises(isorun.QueueFull):
            await busy.aembed(TEXTS * 30)
        first.cancel()

    asyncio.run(call())
    assert wait_until(lambda: not busy.session.metrics().waiting)
    metrics = busy.session.metrics()
    assert (metrics.requests, metrics.rejected) == (300, 90)
