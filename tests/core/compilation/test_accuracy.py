"""What is compared, and how near it has to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from isorun.compilation import accuracy
from isorun.errors import InvalidFeeds
from isorun.models import source as models
from isorun.system.cache import Cache
from isorun.types import ModelInfo, TensorSpec


@pytest.fixture
def opened(bert: Path, tmp_path: Path) -> tuple[models.ModelSource, ModelInfo, Cache]:
    cache = Cache(tmp_path)
    source = models.open_model(bert, cache)
    return source, models.inspect(source, cache)[0], cache


def outputs(seed: int, error: float = 0.0, size: float = 1.0) -> list[np.ndarray]:
    """A hidden state and a pooled output of the tiny BERT's widths, for 3 requests of at most 5 tokens."""
    random, noise = np.random.default_rng(seed), np.random.default_rng(9)
    made = [random.standard_normal((3, 5, tiny.WIDTH)), random.standard_normal((3, tiny.WIDTH))]
    return [(size * each + error * noise.standard_normal(each.shape)).astype(np.float32) for each in made]


MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
FEEDS = {"attention_mask": MASK}


def verdict(info: ModelInfo, got: Sequence[Any], tolerance: float = 0.99) -> str:
    return accuracy.differ(info, got, outputs(0), FEEDS, accuracy.limits(tolerance)).verdict


def test_a_little_noise_is_near(opened: Any):
    _, info, _ = opened
    assert verdict(info, outputs(0)) == "pass"
    assert verdict(info, outputs(0, error=0.05)) == "pass"
    assert verdict(info, outputs(0, error=0.05), tolerance=0.9999) == "fail"
    assert verdict(info, outputs(0, error=0.5)) == "fail"


def test_a_request_is_judged_by_all_its_tokens_together(opened: Any):
    """One token of five that is off by 0.2 does not show; a request whose only two tokens are, does."""
    _, info, _ = opened
    noise = np.random.default_rng(1).standard_normal(tiny.WIDTH).astype(np.float32)
    one, both = outputs(0), outputs(0)
    one[0][0, 1] += 0.2 * noise
    both[0][1, :2] += 0.2 * noise
    assert verdict(info, one) == "pass"
    assert verdict(info, both) == "fail"


def test_padding_and_requests_without_a_token_do_not_count(opened: Any):
    _, info, _ = opened
    got = outputs(0)
    got[0][MASK == 0] = 7
    got[1][2] = 7
    assert verdict(info, got) == "pass"


def test_what_is_no_number_fails_wherever_it_is(opened: Any):
    _, info, _ = opened
    got = outputs(0)
    got[0][1, 4, 0] = np.nan
    assert verdict(info, got) == "fail"


@pytest.mark.parametrize("size", [0.5, 1.5, -1.0, 0.0])
def test_another_size_is_not_near(opened: Any, size: float):
    assert verdict(opened[1], outputs(0, size=size)) == "fail"


def test_without_a_tokenizer_requests_are_random_under_every_mask(opened: Any):
    feeds, origin = accuracy.requests(opened[0], opened[1], None, opened[2])
    assert (len(feeds), origin) == (5, "random tokens")
    assert any((each["attention_mask"].sum(axis=1) == 0).any() for each in feeds)


def test_samples_are_the_callers(opened: Any):
    given = [tiny.feeds(2, length) for length in (4, 5, 6)]
    feeds, origin = accuracy.requests(opened[0], opened[1], given, opened[2])
    assert origin == "3 feeds"
    np.testing.assert_array_equal([each["input_ids"].shape[1] for each in feeds], [4, 5, 6])


def test_samples_without_a_real_token_are_none(opened: Any):
    masked, real = tiny.feeds(2, 4), tiny.feeds(2, 5)
    masked["attention_mask"] = masked["attention_mask"] * 0
    feeds, _ = accuracy.requests(opened[0], opened[1], [masked, real, masked], opened[2])
    assert [each["input_ids"].shape for each in feeds] == [(2, 5)]
    with pytest.raises(InvalidFeeds, match="have no real token: 'attention_mask' is 0 throughout"):
        accuracy.requests(opened[0], opened[1], [masked], opened[2])


@pytest.mark.parametrize("samples", [[], [{"input_ids": np.zeros((1, 2), np.int32)}]])
def test_samples_that_cannot_be_fed(opened: Any, samples: Any):
    with pytest.raises(InvalidFeeds):
        accuracy.requests(opened[0], opened[1], samples, opened[2])


def test_a_batch_of_one_without_any_token_is_no_request():
    shape = (1, 4)
    info = ModelInfo(
        inputs=(TensorSpec("input_ids", "tensor(int64)", shape), TensorSpec("attention_mask", "tensor(int64)", shape)),
        outputs=(TensorSpec("y", "tensor(float)", (1, 4, 8)),),
        opset=17,
    )
    source = models.ModelSource(Path("no/such/model.onnx"), "0" * 64)
    feeds, _ = accuracy.requests(source, info, None, Cache("no/such/cache"))
    assert feeds
    assert all(each["attention_mask"].any() for each in feeds)
    assert accuracy.timed(info)[1] == "1 x 4"


def test_samples_have_a_name_of_their_own(opened: Any):
    source = opened[0]
    names = [
        accuracy.digest(source, samples)
        for samples in (None, ["a"], ["b"], ["a", "b"], [tiny.feeds()], [tiny.feeds(seed=1)])
    ]
    assert names[0] == "random"
    assert len(set(names)) == len(names)
    assert accuracy.digest(source, [tiny.feeds()]) == names[4]
