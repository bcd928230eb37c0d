"""What is compared, and how accurate it has to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import masks
from isorun.compilation import accuracy
from isorun.errors import BackendFailed
from isorun.types import ModelInfo, TensorSpec

WIDTH = 32
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])
FEEDS = {masks.NAME: MASK}
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
    made = [random.standard_normal((3, 5, WIDTH)), random.standard_normal((3, WIDTH))]
    return [(size * each + error * noise.standard_normal(each.shape)).astype(np.float32) for each in made]


def verdict(got: Sequence[Any], cosine: float = 0.99, info: ModelInfo = INFO) -> str:
    return accuracy.differ(info, got, outputs(0), FEEDS, accuracy.limits(cosine)).verdict


def test_a_little_noise_is_accurate() -> None:
    assert verdict(outputs(0)) == "pass"
    assert verdict(outputs(0, error=0.05)) == "pass"
    assert verdict(outputs(0, error=0.05), cosine=0.9999) == "fail"
    assert verdict(outputs(0, error=0.5)) == "fail"


def test_a_request_is_judged_by_all_its_tokens_together() -> None:
    """One token of five that is off by 0.2 does not show; a request whose only two tokens are, does."""
    noise = np.random.default_rng(1).standard_normal(WIDTH).astype(np.float32)
    one, both = outputs(0), outputs(0)
    one[0][0, 1] += 0.2 * noise
    both[0][1, :2] += 0.2 * noise
    assert verdict(one) == "pass"
    assert verdict(both) == "fail"


def test_padding_and_requests_without_a_token_do_not_count() -> None:
    got = outputs(0)
    got[0][MASK == 0] = 7
    got[1][2] = 7
    assert verdict(got) == "pass"


def test_without_a_mask_all_of_it_counts() -> None:
    got = outputs(0)
    got[1][2] = 7
    assert verdict(got, info=ModelInfo(INFO.inputs, INFO.outputs, 17)) == "fail"


def test_what_is_no_number_fails_wherever_it_is() -> None:
    got = outputs(0)
    got[0][1, 4, 0] = np.nan
    assert verdict(got) == "fail"


@pytest.mark.parametrize("size", [0.5, 1.5, -1.0, 0.0])
def test_another_size_is_not_accurate(size: float) -> None:
    assert verdict(outputs(0, size=size)) == "fail"


def test_held_out_requests_leave_a_margin_for_others() -> None:
    assert accuracy.required_cosine(0.99) == pytest.approx(0.995)
    assert accuracy.required_cosine(0.5) == pytest.approx(0.75)


def judge(errors: dict[str, float], cosine: float = 0.99) -> accuracy.Judgement:
    """A precision that is off by so much on each kind of request."""
    kinds = {kind: [{**FEEDS, "error": np.array(error)}] for kind, error in errors.items()}
    expected = {kind: [outputs(0)] for kind in kinds}
    return accuracy.judge(
        INFO, lambda feeds: outputs(0, float(feeds["error"])), kinds, expected, accuracy.limits(cosine)
    )


def test_the_worst_kind_decides() -> None:
    judged = judge({"prose": 0.01, "punctuation": 0.5, "code": 0.2})
    kind, cosine = judged.worst
    assert (kind, cosine) == ("punctuation", judged.cosines["punctuation"])
    assert "punctuation" in judged.reason
    assert list(judged.cosines) == ["prose", "punctuation", "code"]
    assert judge({"prose": 0.01, "punctuation": 0.02}).reason == ""


def test_what_fails_on_a_request_is_out() -> None:
    def fails(_: object) -> list[Any]:
        raise BackendFailed("it broke")

    judged = accuracy.judge(INFO, fails, {"prose": [FEEDS]}, {"prose": [outputs(0)]}, accuracy.limits(0.99))
    assert judged.reason == "it broke"


def test_a_model_of_fixed_size_is_timed_at_it() -> None:
    info = ModelInfo(inputs=(TensorSpec("x", "tensor(int64)", (1, 4)),), outputs=(), opset=17)
    assert accuracy.timed(info)[1] == "1 x 4"
