"""What callers may pass as texts."""

import array
import asyncio
import io
import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isorun
import sentence_models
from columns import Column, Frame
from isorun.errors import InvalidArgument, InvalidFeeds, IsorunError
from isorun.text.inputs import checked, stream_of, text_or_pair, texts_of, texts_or_pairs_of
from isorun.text.ranked import ranked

TEXTS = ["b", "", "ç 🙂", "b"]


class Table:
    """A table of PyArrow."""

    column_names = property(lambda self: ["text"])

    def to_pylist(self) -> list[Any]:
        return [{"text": "a"}]


class Missing:
    """pandas.NA, whose comparisons have no truth value."""

    def __ne__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = None  # type: ignore[assignment]


Missing.__name__ = "NAType"


class Loud(str):
    """A str that prints as something else."""

    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize(
    "collection",
    [
        TEXTS,
        tuple(TEXTS),
        iter(TEXTS),
        (text for text in TEXTS),
        dict(enumerate(TEXTS)).values(),
        np.array(TEXTS),
        np.array(TEXTS, object),
        np.repeat(np.array(TEXTS), 2)[::2],
        *(Column(TEXTS, method) for method in ("to_pylist", "to_list", "tolist")),
    ],
)
def test_reads_collections_by_position(collection: Any) -> None:
    texts = texts_of(collection)
    assert texts == TEXTS
    assert {type(text) for text in texts} == {str}


def test_subclasses_of_str_keep_their_content() -> None:
    assert texts_of([Loud("a"), np.str_("b")]) == ["a", "b"]
    assert type(checked(Loud("a"), "text")) is str


@pytest.mark.parametrize("empty", [[], (), np.array([]), iter(()), Column([], "to_list")])
def test_accepts_no_texts(empty: Any) -> None:
    assert texts_of(empty) == texts_or_pairs_of(empty) == []


@pytest.mark.parametrize(
    ("collection", "message"),
    [
        ("abc", "got a single str. Put it in a list"),
        (b"abc", "got a single bytes. Decode it"),
        (bytearray(b""), "got a single bytearray"),
        (memoryview(b"abc"), "got a single memoryview"),
        (array.array("b", b"abc"), "got a single array"),
        ({"a": "b"}, "got dict, whose items are not texts in order"),
        ({"a": "b"}.keys(), "got dict_keys, whose"),
        ({"a"}, "got set, whose"),
        (frozenset("a"), "got frozenset, whose"),
        (None, "got NoneType. Pass a list of str"),
        (3, "got int. Pass"),
        (str, "got the class str"),
        (Frame(), r"a table \(Frame\). Pass one of its columns"),
        (Table(), r"a table \(Table\)"),
        (np.array("abc"), r"ndarray of shape \(\)"),
        (np.array([TEXTS]), r"ndarray of shape \(1, 4\)"),
    ],
)
def test_rejects_what_is_not_a_list_of_texts(collection: Any, message: str) -> None:
    for read in (texts_of, texts_or_pairs_of, stream_of):
        with pytest.raises(InvalidArgument, match=message):
            read(collection)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (None, r"a missing value \(None\). Drop or fill"),
        (float("nan"), r"a missing value \(nan\)"),
        (Missing(), "a missing value"),
        (3, "got int"),
        (1.5, "got float"),
        (b"a", "got bytes"),
        ({"text": "a"}, "got dict"),
        ("a\ud800", "lone surrogate"),
    ],
)
def test_reports_the_position_and_type_of_an_invalid_item(item: Any, message: str) -> None:
    for collection in (["a", item], Column(["a", item], "to_list"), iter(["a", item])):
        with pytest.raises(InvalidFeeds, match=f"^Text 1 .*{message}"):
            texts_of(collection)
    with pytest.raises(InvalidFeeds, match=f"^Text 0 .*{message}"):
        texts_or_pairs_of([item])
    with pytest.raises(InvalidFeeds, match=f"^Text 0, part 2 of the pair, .*{message}"):
        texts_or_pairs_of([("a", item)])


@pytest.mark.parametrize("pair", [("a", "b"), ["a", "b"]])
def test_pairs_are_for_rerankers(pair: Any) -> None:
    assert texts_or_pairs_of([pair, "c", pair]) == [("a", "b"), "c", ("a", "b")]
    assert text_or_pair(pair, "text") == ("a", "b")
    with pytest.raises(InvalidFeeds, match=f"Text 1 must be a str, got {type(pair).__name__}"):
        texts_of(["a", pair])


def test_rejects_an_ambiguous_tuple_and_pairs_of_another_length() -> None:
    with pytest.raises(InvalidArgument, match=r"a tuple of two str. Pass \[\(first, second\)\]"):
        texts_or_pairs_of(("query", "document"))
    for item in ((), ("a",), ["a", "b", "c"]):
        with pytest.raises(InvalidFeeds, match=f"Text 0 .* of {len(item)}"):
            texts_or_pairs_of([item])


def test_a_stream_is_read_lazily() -> None:
    stream = stream_of(itertools.chain(["a", "b"], iter([None]), itertools.repeat("c")))
    assert list(itertools.islice(stream, 2)) == ["a", "b"]
    with pytest.raises(InvalidFeeds, match="Text 2 must be a str"):
        next(stream)
    assert list(stream_of(io.StringIO("a\nb"))) == ["a\n", "b"]


ITEMS = st.one_of(
    st.text(),
    st.text(st.characters(codec=None)),
    st.none(),
    st.integers(),
    st.floats(),
    st.binary(),
    st.lists(st.text(max_size=2), max_size=3),
    st.tuples(st.text(max_size=2), st.none() | st.text(max_size=2)),
    st.dictionaries(st.text(max_size=1), st.text(max_size=1), max_size=1),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(ITEMS, max_size=5), st.sampled_from([list, tuple, iter, lambda items: Column(items, "to_list")]))
def test_returns_what_was_passed_or_names_the_first_invalid_item(items: list[Any], collect: Any) -> None:
    def valid(item: object) -> bool:
        return isinstance(item, str) and item.encode(errors="replace").decode() == item

    wrong = next((position for position, item in enumerate(items) if not valid(item)), None)
    if wrong is None:
        assert texts_of(collect(items)) == items
    else:
        with pytest.raises(InvalidFeeds, match=f"^Text {wrong} "):
            texts_of(collect(items))


@settings(max_examples=200, deadline=None)
@given(st.recursive(ITEMS, lambda inner: st.lists(inner, max_size=3) | st.sets(st.text(max_size=1))))
def test_anything_else_is_isoruns_own_error(given_: Any) -> None:
    for read in (texts_of, texts_or_pairs_of):
        try:
            texts = read(given_)
        except IsorunError:
            continue
        assert isinstance(given_, list | tuple)
        assert len(texts) == len(given_)


def test_arguments_have_one_type(tmp_path: Path) -> None:
    """Neither 0 for False, nor text for a number."""
    model = sentence_models.write_sentence_model(tmp_path)
    with isorun.Embedder(model, backend="ort-cpu") as embedder:
        for value in (0, 1, "no", np.int64(0)):
            with pytest.raises(InvalidArgument, match="normalize must be"):
                embedder.embed(["a"], normalize=value)
        with pytest.raises(InvalidArgument, match="has no effect beside prompt"):
            embedder.embed(["a"], prompt="x: ", prompt_name="query")
        with pytest.raises(TypeError, match="Embedder cannot be pickled"):
            pickle.dumps(embedder)
        for timeout in (-1, float("nan"), "1"):
            with pytest.raises(InvalidArgument, match="timeout must be"):
                asyncio.run(embedder.session.arun(None, embedder.feeds(embedder.tokens(["a"])), timeout=timeout))
    for name in ("max_length", "batch_tokens", "truncate_dim"):
        for value in (64.0, "64", 0, True):
            with pytest.raises(InvalidArgument, match=f"{name} must be"):
                isorun.Embedder(model, backend="ort-cpu", **{name: value})
    for prompts in (["a"], {"query": 1}):
        with pytest.raises(InvalidArgument, match="prompts must be"):
            isorun.Embedder(model, backend="ort-cpu", prompts=prompts)


@pytest.mark.parametrize("top_k", [0, -1, 1.5, "2", True])
def test_a_number_of_documents_is_at_least_one(top_k: Any) -> None:
    with pytest.raises(InvalidArgument, match="top_k must be a whole number of at least 1"):
        ranked(["a", "b"], np.array([1, 2], np.float32), top_k)
