"""What is compared, and the required accuracy."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import masks
from isorun.errors import BackendFailed
from isorun.models.sentence_settings import SentenceSettings
from isorun.models.vectors import TextVectors
from isorun.tuning import accuracy
from isorun.types import ModelInfo, TensorSpec

WIDTH = 32
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
FEEDS = {masks.NAME: MASK}
CANDIDATE = accuracy.Candidate(backend="fake", precision="fp8")
INFO = ModelInfo(
    inputs=(TensorSpec(masks.NAME, "tensor(int64)", ("batch", "sequence")),),
    outputs=(
        TensorSpec("hidden", "tensor(float)", ("batch", "length", WIDTH)),
        TensorSpec("pooled", "tensor(float)", ("batch", WIDTH)),
    ),
    opset=17,
    mask=masks.NAME,
    token_outputs=("hidden",),
)


def outputs(seed: int, error: float = 0.0, size: float = 1.0) -> list[np.ndarray]:
    """A hidden state and a pooled output for 3 requests of at most 5 tokens."""
    random, noise = np.random.default_rng(seed), np.random.default_rng(9)
    arrays = [random.standard_normal((3, 5, WIDTH)), random.standard_normal((3, WIDTH))]
    return [(size * array + error * noise.standard_normal(array.shape)).astype(np.float32) for array in arrays]


def verdict(got: Sequence[Any], cosine: float = 0.99, info: ModelInfo = INFO) -> str:
    return accuracy.differ(info, got, outputs(0), FEEDS, accuracy.limits(cosine)).verdict


def test_accepts_a_little_noise() -> None:
    assert verdict(outputs(0)) == "pass"
    assert verdict(outputs(0, error=0.05)) == "pass"
    assert verdict(outputs(0, error=0.05), cosine=0.9999) == "fail"
    assert verdict(outputs(0, error=0.5)) == "fail"


def test_a_request_is_judged_by_all_its_tokens_together() -> None:
    """An error of 0.2 in one token of five is accepted, in both tokens of a request of two it is not."""
    noise = np.random.default_rng(1).standard_normal(WIDTH).astype(np.float32)
    one_token, both = outputs(0), outputs(0)
    one_token[0][0, 1] += 0.2 * noise
    both[0][1, :2] += 0.2 * noise
    assert verdict(one_token) == "pass"
    assert verdict(both) == "fail"


def test_ignores_padding_and_requests_without_tokens() -> None:
    got = outputs(0)
    got[0][MASK == 0] = 7
    got[1][2] = 7
    assert verdict(got) == "pass"


def test_compares_everything_without_a_mask() -> None:
    got = outputs(0)
    got[1][2] = 7
    assert verdict(got, info=ModelInfo(INFO.inputs, INFO.outputs, 17)) == "fail"


def test_rejects_nan_even_at_padding() -> None:
    got = outputs(0)
    got[0][1, 4, 0] = np.nan
    assert verdict(got) == "fail"


@pytest.mark.parametrize("size", [0.5, 1.5, -1.0, 0.0])
def test_rejects_outputs_of_another_size(size: float) -> None:
    assert verdict(outputs(0, size=size)) == "fail"


def test_held_out_requests_must_be_closer_than_the_tolerance() -> None:
    assert accuracy.Required(0.99).cosine == pytest.approx(0.995)
    assert accuracy.Required(0.5).cosine == pytest.approx(0.75)


def judge(errors: dict[str, float], cosine: float = 0.99) -> accuracy.Candidate:
    """A precision with an error for each kind of request."""
    kinds = {kind: [{**FEEDS, "error": np.array(error)}] for kind, error in errors.items()}
    reference = accuracy.ReferenceOutputs.of(lambda _: outputs(0), INFO, kinds, accuracy.Required(2 * cosine - 1))
    return reference.judge(CANDIDATE, lambda feeds: outputs(0, float(feeds["error"])))


def test_judges_by_the_worst_kind() -> None:
    judged = judge({"prose": 0.01, "punctuation": 0.5, "code": 0.2})
    assert (judged.worst, judged.cosine) == ("punctuation", judged.cosines["punctuation"])
    assert "punctuation" in judged.reason
    assert list(judged.cosines) == ["prose", "punctuation", "code"]
    assert judge({"prose": 0.01, "punctuation": 0.02}).reason == ""


def test_rejects_a_precision_that_fails_on_a_request() -> None:
    def fails(_: object) -> list[Any]:
        raise BackendFailed("it broke")

    reference = accuracy.ReferenceOutputs.of(lambda _: outputs(0), INFO, {"prose": [FEEDS]}, accuracy.Required(0.98))
    assert reference.judge(CANDIDATE, fails).reason == "it broke"


def test_rejects_vectors_that_lose_their_neighbours_although_the_cosine_passes() -> None:
    """Vectors that share a large component are close to each other: little noise changes who is nearest."""
    feeds = {masks.NAME: np.ones((40, 3), np.int64)}
    random = np.random.default_rng(0)
    common = 30 * random.standard_normal(WIDTH)
    vectors = (common + random.standard_normal((40, WIDTH))).astype(np.float32)
    noisy = (vectors + 1.0 * random.standard_normal((40, WIDTH))).astype(np.float32)
    info = replace(INFO, outputs=(TensorSpec("sentence_embedding", "tensor(float)", ("batch", WIDTH)),))
    required = accuracy.Required(0.98, 0.9, TextVectors(SentenceSettings(), info))
    reference = accuracy.ReferenceOutputs.of(lambda _: [vectors], info, {"prose": [feeds]}, required)
    judged = reference.judge(CANDIDATE, lambda _: [noisy])
    assert judged.cosine is not None
    assert judged.cosine > required.cosine
    assert judged.neighbours["high"] < 0.9
    assert "nearest neighbours" in judged.reason
    assert reference.judge(CANDIDATE, lambda _: [vectors]).reason == ""


def test_times_a_model_of_fixed_size_at_that_size() -> None:
    info = ModelInfo(inputs=(TensorSpec("x", "tensor(int64)", (1, 4)),), outputs=(), opset=17)
    assert accuracy.timed(info)[1] == "1 x 4"
