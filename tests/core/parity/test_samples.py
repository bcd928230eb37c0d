from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isorun.errors import InvalidFeeds
from isorun.parity.samples import (
    MASKS,
    WITHOUT_MASK,
    lognormal_lengths,
    masked_cases,
    random_feeds,
    resolve_shape,
    right_padded,
)
from isorun.types import ModelInfo, TensorSpec


def taking(*inputs: TensorSpec, mask: str | None = None) -> ModelInfo:
    return ModelInfo(inputs, (), 17, mask=mask)


BERT = taking(
    TensorSpec("input_ids", "tensor(int64)", ("batch", "sequence"), bounds=(0, 99)),
    TensorSpec("input_mask", "tensor(int64)", ("batch", "sequence")),
    TensorSpec("token_type_ids", "tensor(int64)", ("batch", "sequence"), bounds=(0, 1)),
    mask="input_mask",
)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 20)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.sampled_from(sorted(MASKS)), sizes, sizes, seeds)
def test_every_mask_is_of_zeros_and_ones_and_repeats_with_its_seed(
    kind: str, batch: int, sequence: int, seed: int
) -> None:
    mask = MASKS[kind](batch, sequence, rng(seed))
    assert (mask.shape, mask.dtype) == ((batch, sequence), np.dtype(np.int64))
    assert set(np.unique(mask)) <= {0, 1}
    assert np.array_equal(mask, MASKS[kind](batch, sequence, rng(seed)))


@given(sizes, st.integers(2, 20), seeds)
def test_masks_match_their_names(batch: int, sequence: int, seed: int) -> None:
    masks = {kind: mask(batch, sequence, rng(seed)) for kind, mask in MASKS.items()}
    assert masks["none"].all()
    assert (np.diff(masks["right"], axis=1) <= 0).all()
    assert (np.diff(masks["left"], axis=1) >= 0).all()
    for kind in ("right", "left", "holes"):
        real = masks[kind].sum(axis=1)
        assert (real >= 1).all()
        assert (real < sequence).all()
    assert not masks["masked-row"][-1].any()
    assert masks["masked-row"][:-1].any(axis=1).all()


def test_holes_are_neither_left_nor_right_padding() -> None:
    mask = MASKS["holes"](4, 32, rng())
    assert (np.diff(mask, axis=1) > 0).any()
    assert (np.diff(mask, axis=1) < 0).any()


def test_right_padded() -> None:
    assert right_padded([1, 3], 3).tolist() == [[1, 0, 0], [1, 1, 1]]


@given(st.floats(1, 500), st.floats(0.01, 3), st.integers(1, 100), st.integers(0, 400), st.integers(0, 50), seeds)
def test_lengths_stay_between_their_ends(
    median: float, sigma: float, least: int, room: int, count: int, seed: int
) -> None:
    lengths = lognormal_lengths(count, median, sigma, least, least + room, rng(seed))
    assert lengths.shape == (count,)
    assert ((lengths >= least) & (lengths <= least + room)).all()


def test_lengths_have_the_requested_median() -> None:
    lengths = lognormal_lengths(20_000, 40, 0.5, 1, 512, rng())
    assert np.median(lengths) == pytest.approx(40, abs=1)
    cut = lognormal_lengths(20_000, 100, 0.5, 1, 128, rng())
    assert np.mean(cut == 128) < 0.03


def test_feeds_of_a_bert_keep_the_mask_the_bounds_and_the_seed() -> None:
    mask = right_padded([2, 7, 5], 7)
    feeds = random_feeds(BERT, rng(1), batch=3, sequence=7, mask=mask)
    assert list(feeds) == ["input_ids", "input_mask", "token_type_ids"]
    assert all(feed.shape == (3, 7) and feed.dtype == np.int64 for feed in feeds.values())
    assert np.array_equal(feeds["input_mask"], mask)
    ids = np.concatenate([random_feeds(BERT, rng(i), batch=3, sequence=7)["input_ids"].ravel() for i in range(100)])
    assert (ids.min(), ids.max()) == (0, 99)
    segments = feeds["token_type_ids"]
    assert (segments[:, 0] == 0).all()
    assert (np.diff(segments, axis=1) >= 0).all()
    again = random_feeds(BERT, rng(1), batch=3, sequence=7, mask=mask)
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)


def test_segments_stay_within_bounds() -> None:
    single_segment = taking(TensorSpec("token_type_ids", "tensor(int64)", ("batch", "sequence"), bounds=(0, 0)))
    assert not random_feeds(single_segment, rng(), batch=4, sequence=9)["token_type_ids"].any()


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("float", "f4"), ("double", "f8"), ("float16", "f2"), ("bool", "?"), ("int32", "i4"), ("complex64", "c8")],
)
def test_feeds_of_any_tensor_type(kind: str, dtype: str) -> None:
    feeds = random_feeds(
        taking(TensorSpec("x", f"tensor({kind})", ("n", 3, "width"))), rng(), batch=2, dims={"width": 4}
    )
    assert (feeds["x"].shape, feeds["x"].dtype) == ((2, 3, 4), np.dtype(dtype))


def test_dimensions_that_no_input_has_are_named() -> None:
    info = taking(TensorSpec("x", "tensor(float)", ("n", "width")))
    with pytest.raises(InvalidFeeds, match=r"'widht'.*did you mean 'width'"):
        random_feeds(info, rng(), batch=2, sequence=3, dims={"widht": 4})


def test_negative_indices_are_not_fed() -> None:
    spec = TensorSpec("ids", "tensor(int64)", ("n",), bounds=(-5, 4))
    assert random_feeds(taking(spec), rng(), batch=200)["ids"].min() == 0


def test_feeds_a_scalar() -> None:
    info = taking(TensorSpec("x", "tensor(float)", ("n",)), TensorSpec("scale", "tensor(float)", ()))
    assert random_feeds(info, rng(), batch=2)["scale"].shape == ()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([TensorSpec("x", "tensor(float)", None)], "'x': tensor(float) of unknown rank"),
        ([TensorSpec("x", "seq(tensor(float))", ("n",))], "'x': seq(tensor(float))"),
        ([TensorSpec("x", "tensor(bfloat16)", ("n",))], "'x': tensor(bfloat16)"),
        ([TensorSpec("x", "tensor(float)", ("n", "s", "w"))], "'x': dimension 2 ('w')"),
        ([TensorSpec("x", "tensor(float)", ("n", "s", None))], "'x': dimension 2"),
        ([TensorSpec("x", "tensor(float)", (1, "s"))], "batch 2 was requested"),
        ([TensorSpec("x", "tensor(float)", (3, 2))], "batch 2 was requested"),
        ([TensorSpec("x", "tensor(float)", (2, 64))], "sequence 8 was requested"),
    ],
)
def test_rejects_inputs_that_cannot_be_generated(inputs: Sequence[TensorSpec], message: str) -> None:
    with pytest.raises(InvalidFeeds) as caught:
        random_feeds(taking(*inputs), rng(), batch=2, sequence=8)
    assert message in str(caught.value)


def test_strings_are_numbers() -> None:
    (feed,) = random_feeds(taking(TensorSpec("x", "tensor(string)", ("n", 3))), rng(), batch=2).values()
    assert (feed.shape, feed.dtype) == ((2, 3), np.dtype(object))
    assert all(type(item) is str and 0 <= int(item) < 100 for item in feed.flat)


def test_rejects_a_mask_of_another_shape() -> None:
    with pytest.raises(InvalidFeeds, match=r"\[2, 8\].*\[2, 4\]"):
        random_feeds(BERT, rng(), batch=2, sequence=8, mask=right_padded([1, 2], 4))


def test_rejects_a_mask_for_a_model_without_one() -> None:
    info = taking(TensorSpec("attention_mask", "tensor(int64)", ("batch", "sequence")))
    assert set(np.unique(random_feeds(info, rng(), batch=8, sequence=9)["attention_mask"])) == {0, 1}
    assert list(masked_cases(info, 2, 4, seed=0)) == [WITHOUT_MASK]
    with pytest.raises(InvalidFeeds, match="mask"):
        random_feeds(info, rng(), batch=1, sequence=2, mask=right_padded([1], 2))


def test_every_kind_of_mask_is_fed_to_the_input_that_is_the_mask() -> None:
    cases = masked_cases(BERT, 3, 8, seed=0)
    assert list(cases) == list(MASKS)
    assert all(cases[name]["input_mask"].all() == (name == "none") for name in cases)


def test_omits_overridable_inputs() -> None:
    info = taking(TensorSpec("x", "tensor(float)", ("n",)), TensorSpec("y", "tensor(float)", ("n",), overridable=True))
    assert list(random_feeds(info, rng(), batch=2)) == ["x"]


def test_named_dimensions_take_precedence() -> None:
    assert resolve_shape(TensorSpec("x", "tensor(float)", ("a", "b")), 2, 8, {"b": 3}) == (2, 3)


@pytest.mark.parametrize(
    ("bounds", "drawn"), [((-5, 2**63 - 1), {0, 1}), ((-4, -2), {-4, -3, -2}), ((-(2**63), 2), {0, 1, 2})]
)
def test_integers_with_one_bound_and_negative_ones(bounds, drawn) -> None:
    spec = TensorSpec("ids", "tensor(int64)", ("n",), bounds=bounds)
    feed = random_feeds(ModelInfo((spec,), (), 17), np.random.default_rng(0), batch=200)["ids"]
    assert set(feed.tolist()) == drawn
