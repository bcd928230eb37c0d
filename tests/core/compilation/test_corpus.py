"""What int8 is calibrated on and what precisions are judged on."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import masks
import small_bert
from isorun.compilation import corpus
from isorun.errors import InvalidFeeds
from isorun.models.lowering import ModelGraphs
from isorun.models.source import open_model
from isorun.system.cache import Cache

KINDS = {
    *("prose", "questions", "code", "urls and numbers", "punctuation", "single words", "languages", "nearly empty"),
    *("upper case", "long texts"),
}


def opened(path: Path, folder: Path) -> ModelGraphs:
    cache = Cache(folder / "cache")
    return ModelGraphs(open_model(path, cache), cache)


@pytest.fixture(params=["attention_mask", masks.NAME, None], ids=str)
def mask(request: pytest.FixtureRequest) -> str | None:
    return request.param


@pytest.fixture
def model(mask: str | None, tmp_path: Path) -> ModelGraphs:
    return opened(masks.write(tmp_path / "model.onnx", mask), tmp_path)


@pytest.fixture
def with_tokenizer(mask: str | None, tokenizer: Path, tmp_path: Path) -> ModelGraphs:
    shutil.copy(tokenizer, tmp_path / "tokenizer.json")
    return opened(masks.write(tmp_path / "model.onnx", mask), tmp_path)


def same(text: str) -> str:
    """A text as an uncased tokenizer sees it, approximately."""
    return " ".join(text.casefold().split())


def test_no_text_is_on_both_sides() -> None:
    calibrated_on, judged_on = (
        [same(text) for listed in corpus.texts(held_out=held_out).values() for text in listed]
        for held_out in (False, True)
    )
    assert not set(calibrated_on) & set(judged_on)
    assert len(calibrated_on) > 2 * len(judged_on)


@pytest.mark.parametrize("held_out", [False, True])
def test_both_sides_have_texts_of_every_kind(held_out: bool) -> None:
    kinds = corpus.texts(held_out=held_out)
    assert set(kinds) == KINDS
    assert all(kinds.values())
    assert not any(character.isalnum() for text in kinds["punctuation"] for character in text)
    assert all(text == text.upper() for text in kinds["upper case"])
    assert all(len(text) > 500 for text in kinds["long texts"])


def test_holds_out_every_fourth_sample() -> None:
    samples = [f"text {number}" for number in range(100)]
    calibrated_on, held_out = corpus.split(samples)
    assert held_out == samples[3::4]
    assert calibrated_on is not None
    assert sorted([*calibrated_on, *held_out]) == sorted(samples)


def test_equal_samples_count_once() -> None:
    texts = [f"text {number}" for number in range(100)]
    calibrated_on, held_out = corpus.split([*texts, *texts])
    assert (calibrated_on, held_out) == corpus.split(texts)
    feeds = [small_bert.feeds(np.ones((1, 4), np.int64), seed) for seed in range(100)]
    calibrated_on, held_out = corpus.split([sample for sample in feeds for _ in range(4)])
    assert calibrated_on is not None
    assert (len(calibrated_on), len(held_out)) == (75, 25)


@pytest.mark.parametrize("rows", [1, 2])
def test_holds_out_none_of_few_samples(rows: int) -> None:
    feeds = [small_bert.feeds(np.ones((rows, 4), np.int64), seed) for seed in range(95 // rows)]
    assert corpus.split(feeds) == (feeds, [])
    assert corpus.split(None) == (None, [])


def test_counts_the_rows_of_batches() -> None:
    _, held_out = corpus.split([small_bert.feeds(np.ones((24, 4), np.int64), seed) for seed in range(4)])
    assert len(held_out) == 1


def test_judges_on_the_texts_of_isorun_with_a_tokenizer(with_tokenizer: ModelGraphs) -> None:
    info = with_tokenizer.info
    kinds, origin = corpus.held_out(with_tokenizer, [])
    assert "isorun's texts" in origin
    assert set(kinds) == KINDS
    for feeds in [*corpus.own_texts(with_tokenizer), *(sample for listed in kinds.values() for sample in listed)]:
        assert set(feeds) == {spec.name for spec in info.inputs}
        if info.mask is not None:
            assert set(np.unique(feeds[info.mask])) <= {0, 1}
            assert feeds[info.mask].any(axis=1).all()


def test_judges_on_random_tokens_without_a_tokenizer(model: ModelGraphs) -> None:
    info = model.info
    kinds, origin = corpus.held_out(model, [])
    assert origin == "random tokens"
    assert len(kinds) == (1 if info.mask is None else 5)
    calibrated_on = corpus.random_batches(info)
    judged_on = {batch["input_ids"].tobytes() for listed in kinds.values() for batch in listed}
    assert not judged_on & {batch["input_ids"].tobytes() for batch in calibrated_on}
    if info.mask is not None:
        assert any((batch[info.mask] == 0).any() for batch in calibrated_on)


def test_judges_on_given_samples_with_a_real_token(tmp_path: Path) -> None:
    graphs = opened(masks.write(tmp_path / "model.onnx", masks.NAME), tmp_path)
    real, padded = (masks.feeds(np.full((2, 5), value), masks.NAME) for value in (1, 0))
    kinds, origin = corpus.held_out(graphs, [padded, real])
    assert "given samples" in origin
    (kept,) = kinds["samples"]
    np.testing.assert_array_equal(kept[masks.NAME], real[masks.NAME])
    with pytest.raises(InvalidFeeds, match=f"no real token: '{masks.NAME}'"):
        corpus.as_feeds(graphs, [padded])


def test_the_digest_covers_samples_and_tokenizer(model: ModelGraphs, tmp_path: Path, tokenizer: Path) -> None:
    feeds = small_bert.feeds(np.ones((1, 4), np.int64))
    lists: list[Any] = [None, [], ["a"], ["b"], ["a", "b"], [feeds], [small_bert.feeds(np.ones((1, 4), np.int64), 1)]]
    names = [corpus.digest(model, samples) for samples in lists]
    assert len(set(names)) == len(names)
    assert corpus.digest(model, [dict(feeds)]) == names[5]
    shutil.copy(tokenizer, tmp_path / "tokenizer.json")
    assert corpus.digest(model, None) not in names
