import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from isorun_matrix.measurement.statistics import latencies

samples = st.lists(st.integers(1, 10**12), min_size=1, max_size=300).map(lambda items: np.array(items, dtype=np.int64))


def test_figures_of_a_hundred_runs() -> None:
    latency = latencies.latency(np.arange(1, 101) * 1_000_000)
    assert latency.samples == 100
    assert (latency.min, latency.max, latency.mean) == (1, 100, 50.5)
    assert latency.std == pytest.approx(29.0115, abs=1e-4)
    # type 7: p50 lies half-way between the 50th and the 51st
    assert (latency.p50, latency.p90, latency.p95, latency.p99) == pytest.approx((50.5, 90.1, 95.05, 99.01))
    assert latency.notes == []


@pytest.mark.parametrize(("percentile", "needed"), [(90, 10), (95, 20), (99, 100)])
def test_a_percentile_needs_a_minimum_of_samples(percentile: int, needed: int) -> None:
    assert latencies.samples_needed(percentile) == needed
    enough, few = (vars(latencies.latency(np.full(count, 7))) for count in (needed, needed - 1))
    assert enough[f"p{percentile}"] is not None
    assert few[f"p{percentile}"] is None
    assert f"p{percentile} needs {needed} samples, got {needed - 1}" in few["notes"]


def test_a_single_sample_has_a_median() -> None:
    latency = latencies.latency(np.array([7_000_000]))
    assert (latency.p50, latency.mean, latency.std) == (7, 7, None)
    assert not any(note.startswith("p50") for note in latency.notes)


@given(samples)
def test_figures_are_ordered_and_independent_of_the_order_of_runs(runs: np.ndarray) -> None:
    figures = vars(latencies.latency(runs))
    known = [figures[name] for name in ("min", "p50", "p90", "p95", "p99", "max") if figures[name] is not None]
    assert known == sorted(known)
    again = vars(latencies.latency(runs[::-1]))
    ordered = ("mean", "std")
    assert all(again[name] == value for name, value in figures.items() if name not in ordered)


@pytest.mark.parametrize("count", [*range(2, 80), 200, 1100, 2001])
def test_rank_intervals_of_any_number_of_values(count: int) -> None:
    interval = latencies.rank_interval(np.arange(1.0, count + 1))
    assert interval is not None
    k = int(interval.low)
    assert interval.high == count + 1 - k
    assert interval.level == pytest.approx(1 - 2 * stats.binom.cdf(k - 1, count, 0.5))
    assert k == 1 or interval.level >= 0.9
    assert stats.binom.cdf(k, count, 0.5) > 0.05  # a narrower one would be less sure


def test_a_rank_interval_contains_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for count in (5, 12):
        intervals = [latencies.rank_interval(rng.lognormal(0, 0.5, count)) for _ in range(4000)]
        held = np.mean([interval is not None and interval.low <= 1 <= interval.high for interval in intervals])
        assert held == pytest.approx(intervals[0].level, abs=0.015)
    assert latencies.rank_interval([1.0]) is None


@given(samples, st.integers(1, 64))
def test_rates_are_runs_per_time(runs: np.ndarray, batch: int) -> None:
    throughput = latencies.throughput(runs, rows=batch * len(runs), tokens=10 * len(runs))
    seconds = runs.sum() / 1e9
    assert throughput.requests_per_s == pytest.approx(len(runs) / seconds)
    assert throughput.rows_per_s == pytest.approx(batch * len(runs) / seconds)
    assert throughput.tokens_per_s == pytest.approx(10 * len(runs) / seconds)
    assert latencies.throughput(runs, rows=1, tokens=None).tokens_per_s is None


def test_the_spread_is_that_of_the_samples() -> None:
    assert latencies.spread(np.arange(0, 101) * 1_000_000) == {f"p{number}": number for number in (5, 25, 50, 75, 95)}
