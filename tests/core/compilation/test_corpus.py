"""What int8 is calibrated on and what precisions are judged on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import masks
import small_bert
from isorun.compilation import corpus
from isorun.errors import InvalidFeeds
from isorun.models import source as models
from isorun.system.cache import Cache
from isorun.types import ModelInfo

Opened = tuple[models.ModelSource, ModelInfo]
KINDS = {
    *("prose", "questions", "code", "urls and numbers", "punctuation", "single words", "languages", "nearly empty"),
    *("upper case", "long texts"),
}


def opened(path: Path, folder: Path) -> Opened:
    cache = Cache(folder / "cache")
    source = models.open_model(path, cache)
    return source, models.inspect(source, cache)[0]


@pytest.fixture(params=["attention_mask", masks.NAME, None], ids=str)
def mask(request: pytest.FixtureRequest) -> str | None:
    return request.param


@pytest.fixture
def model(mask: str | None, tmp_path: Path) -> Opened:
    return opened(masks.write(tmp_path / "model.onnx", mask), tmp_path)


@pytest.fixture
def with_tokenizer(mask: str | None, tokenizer: Path, tmp_path: Path) -> Opened:
    shutil.copy(tokenizer, tmp_path / "tokenizer.json")
    return opened(masks.write(tmp_path / "model.onnx", mask), tmp_path)


def same(text: str) -> str:
    """What an uncased tokenizer makes of a text, near enough."""
    return " ".join(text.casefold().split())


def test_no_text_is_both_calibrated_and_judged_on() -> None:
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


def test_every_fourth_sample_is_held_out() -> None:
    samples = [f"text {number}" for number in range(100)]
    calibrated_on, held_out = corpus.split(samples)
    assert held_out == samples[3::4]
    assert calibrated_on is not None
    assert sorted([*calibrated_on, *held_out]) == sorted(samples)


def test_equal_samples_are_on_one_side() -> None:
    texts = [f"text {number}" for number in range(100)]
    calibrated_on, held_out = corpus.split([*texts, *texts])
    assert (calibrated_on, held_out) == corpus.split(texts)
    feeds = [small_bert.feeds(np.ones((1, 4), np.int64), seed) for seed in range(100)]
    calibrated_on, held_out = corpus.split([each for each in feeds for _ in range(4)])
    assert calibrated_on is not None
    assert (len(calibrated_on), len(held_out)) == (75, 25)


@pytest.mark.parametrize("rows", [1, 2])
def test_few_samples_are_all_for_calibration(rows: int) -> None:
    feeds = [small_bert.feeds(np.ones((rows, 4), np.int64), seed) for seed in range(95 // rows)]
    assert corpus.split(feeds) == (feeds, [])
    assert corpus.split(None) == (None, [])


def test_batches_count_by_their_rows() -> None:
    _, held_out = corpus.split([small_bert.feeds(np.ones((24, 4), np.int64), seed) for seed in range(4)])
    assert len(held_out) == 1


def test_isoruns_texts_by_kind_where_there_is_a_tokenizer(with_tokenizer: Opened) -> None:
    source, info = with_tokenizer
    kinds, origin = corpus.held_out(source, info, [])
    assert "isorun's texts" in origin
    assert set(kinds) == KINDS
    for feeds in [*corpus.own_texts(source, info), *(each for listed in kinds.values() for each in listed)]:
        assert set(feeds) == {spec.name for spec in info.inputs}
        if info.mask is not None:
            assert set(np.unique(feeds[info.mask])) <= {0, 1}
            assert feeds[info.mask].any(axis=1).all()


def test_random_tokens_under_every_mask_where_there_is_none(model: Opened) -> None:
    source, info = model
    kinds, origin = corpus.held_out(source, info, [])
    assert origin == "random tokens"
    assert len(kinds) == (1 if info.mask is None else 5)
    calibrated_on = corpus.random_batches(info)
    judged_on = {each["input_ids"].tobytes() for listed in kinds.values() for each in listed}
    assert not judged_on & {each["input_ids"].tobytes() for each in calibrated_on}
    if info.mask is not None:
        assert any((each[info.mask] == 0).any() for each in calibrated_on)


def test_held_out_samples_are_the_callers_with_a_real_token(tmp_path: Path) -> None:
    source, info = opened(masks.write(tmp_path / "model.onnx", masks.NAME), tmp_path)
    real, padded = (masks.feeds(np.full((2, 5), value), masks.NAME) for value in (1, 0))
    kinds, origin = corpus.held_out(source, info, [padded, real])
    assert "given samples" in origin
    (kept,) = kinds["samples"]
    np.testing.assert_array_equal(kept[masks.NAME], real[masks.NAME])
    with pytest.raises(InvalidFeeds, match=f"no real token: '{masks.NAME}'"):
        corpus.as_feeds(source, info, [padded])


@pytest.mark.parametrize("samples", [[], [7], ["a text", {}], [{"input_ids": np.zeros((1, 2), np.int32)}]], ids=repr)
def test_samples_that_are_none(samples: list[Any], model: Opened) -> None:
    with pytest.raises(InvalidFeeds):
        corpus.as_feeds(*model, samples)


def test_a_digest_names_all_that_is_judged_on(model: Opened, tmp_path: Path, tokenizer: Path) -> None:
    source, cache = model[0], Cache(tmp_path / "cache")
    feeds = small_bert.feeds(np.ones((1, 4), np.int64))
    lists: list[Any] = [None, [], ["a"], ["b"], ["a", "b"], [feeds], [small_bert.feeds(np.ones((1, 4), np.int64), 1)]]
    names = [corpus.digest(source, samples, cache) for samples in lists]
    assert len(set(names)) == len(names)
    assert corpus.digest(source, [dict(feeds)], cache) == names[5]
    shutil.copy(tokenizer, tmp_path / "tokenizer.json")
    assert corpus.digest(source, None, cache) not in names
