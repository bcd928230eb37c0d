import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isorun.errors import InvalidArgument
from isorun.quality import agreement, interval


def vectors(count: int = 60, width: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, width))


def by_hand(reference: np.ndarray, changed: np.ndarray, k: int) -> float:
    kept = 0
    for query in range(len(reference)):
        sets = []
        for array in (reference, changed):
            units = array / np.linalg.norm(array, axis=1, keepdims=True)
            order = [text for text in np.argsort(-(units @ units[query])) if text != query]
            sets.append(set(order[:k]))
        kept += len(sets[0] & sets[1])
    return kept / (k * len(reference))


@given(st.integers(4, 40), st.integers(0, 9), st.floats(0.01, 3), st.integers(1, 12))
def test_recall_is_the_share_of_common_neighbours(count: int, seed: int, noise: float, k: int) -> None:
    reference = vectors(count, seed=seed)
    noisy = reference + noise * vectors(count, seed=99)
    measured = agreement(reference, noisy, k=k)
    assert measured.recall.value == pytest.approx(by_hand(reference, noisy, measured.k))
    assert 0 <= measured.recall.low <= measured.recall.value <= measured.recall.high <= 1


def test_equal_vectors_keep_everything_and_the_interval_has_a_width() -> None:
    measured = agreement(vectors(), 3 * vectors())
    assert (measured.recall.value, measured.first.value, measured.tau.value) == (1, 1, 1)
    assert 0.9 < measured.recall.low < 1


def test_losing_a_neighbour_does_not_raise_the_low_end() -> None:
    """A bootstrap sees few losses, or none, of few queries."""
    kept = np.ones(66)
    ends = [interval.mean(kept).low]
    for query in range(8):
        kept[query] = 0.9
        ends.append(interval.mean(kept).low)
    assert ends == sorted(ends, reverse=True)


def test_the_low_end_holds_where_few_queries_lose_everything() -> None:
    """Of 300 queries, about five: as many samples as stated, 2.5 %, and not 11 %, may be above the true share."""
    drawn = np.random.default_rng(0)
    lost = drawn.binomial(300, 5.1 / 300, 1000)
    ends = {count: interval.mean((np.arange(300) >= count).astype(float)).low for count in set(lost.tolist())}
    assert sum(ends[count] > 1 - 5.1 / 300 for count in lost.tolist()) <= 50


def test_an_interval_of_few_queries() -> None:
    drawn = np.random.default_rng(0)
    for count in [1, 2, 3, 5] * 10:
        base = drawn.random(count) < 0.7
        kept = base & (drawn.random(count) < 0.8)
        measured = interval.mean(kept.astype(float))
        assert measured.low <= measured.value <= measured.high
        if base.any():
            of_base = interval.ratio(
                count, lambda rows, k=kept: float(k[rows].mean()), lambda rows, b=base: b[rows].mean()
            )
            assert of_base.low <= of_base.value <= of_base.high + 1e-9


def test_duplicates_have_no_order() -> None:
    """Of texts that are equal, either is as near."""
    reference = np.repeat(vectors(20), 3, axis=0)
    assert agreement(reference, reference[::1] + 1e-9 * vectors(60)).recall.value == 1


def test_rounding_is_judged_by_angle() -> None:
    """A large common part brings all cosines near 1: what is lost is what a search in float64 loses."""
    drawn = np.random.default_rng(0)
    common = drawn.standard_normal(64)
    reference = common + 0.0015 * vectors(200, 64)
    rounded = reference + 0.001 * vectors(200, 64, seed=1)
    measured = agreement(reference, rounded)
    assert measured.recall.value == pytest.approx(by_hand(reference, rounded, 10), abs=0.01)
    assert measured.recall.value < 0.5
    assert measured.first.value < 0.7
    assert measured.tau.value < 0.5
    assert agreement(reference, (1 + 1e-7 * vectors(200, 64, seed=2)) * reference).recall.value > 0.99


def test_another_model_keeps_little() -> None:
    measured = agreement(vectors(), vectors(seed=1, width=8))
    assert measured.recall.high < 0.5
    assert measured.first.value < 0.5
    assert abs(measured.tau.value) < 0.2


def test_queries_may_differ_from_what_is_searched() -> None:
    """One side's queries in the other side's index: a rotation of both keeps all, of one nothing."""
    turn, _ = np.linalg.qr(vectors(16))
    assert agreement(vectors(), vectors() @ turn).recall.value == pytest.approx(1)
    assert agreement(vectors(), vectors() @ turn, vectors()).recall.value < 0.5


def test_rejects_vectors_of_other_texts() -> None:
    with pytest.raises(InvalidArgument, match="same texts"):
        agreement(vectors(5), vectors(6))
    with pytest.raises(InvalidArgument, match="at least 3"):
        agreement(vectors(2), vectors(2))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_the_interval_holds_the_figure_of_many_queries(noise: float) -> None:
    """Of 60 samples of 80 texts of a population of 4,000, at least 50 hold the mean of the samples."""
    measured = []
    for seed in range(60):
        reference = vectors(80, seed=seed)
        measured.append(agreement(reference, reference + noise * vectors(80, seed=1000 + seed)).recall)
    mean = np.mean([interval.value for interval in measured])
    assert sum(interval.low <= mean <= interval.high for interval in measured) >= 50
