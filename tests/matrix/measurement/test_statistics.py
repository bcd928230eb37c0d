from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isorun_matrix.measurement import statistics

samples = st.lists(st.integers(1, 10**12), min_size=1, max_size=300).map(lambda items: np.array(items, dtype=np.int64))


def test_figures_of_a_hundred_runs() -> None:
    found = statistics.latency(np.arange(1, 101) * 1_000_000)
    assert found.samples == 100
    assert (found.min, found.max, found.mean) == (1, 100, 50.5)
    assert found.std == pytest.approx(29.0115, abs=1e-4)
    # type 7: p50 lies half-way between the 50th and the 51st
    assert (found.p50, found.p90, found.p95, found.p99) == pytest.approx((50.5, 90.1, 95.05, 99.01))
    assert found.notes == []


@pytest.mark.parametrize(("percentile", "needed"), [(50, 2), (90, 10), (95, 20), (99, 100)])
def test_a_percentile_needs_a_minimum_of_samples(percentile: int, needed: int) -> None:
    assert statistics.samples_needed(percentile) == needed
    enough, few = (vars(statistics.latency(np.full(count, 7))) for count in (needed, needed - 1))
    assert enough[f"p{percentile}"] is not None
    assert few[f"p{percentile}"] is None
    assert f"p{percentile} needs {needed} samples, got {needed - 1}" in few["notes"]


@given(samples)
def test_figures_are_ordered_and_independent_of_the_order_of_runs(runs: np.ndarray) -> None:
    found = vars(statistics.latency(runs))
    known = [found[name] for name in ("min", "p50", "p90", "p95", "p99", "max") if found[name] is not None]
    assert known == sorted(known)
    again = vars(statistics.latency(runs[::-1]))
    ordered = ("mean", "std", "p50_interval")
    assert all(again[name] == value for name, value in found.items() if name not in ordered)


@given(samples)
def test_a_median_lies_in_its_interval(runs: np.ndarray) -> None:
    found = statistics.latency(runs)
    assert (found.p50 is None) == (found.p50_interval is None) == (len(runs) < 2)
    if found.p50 is not None and found.p50_interval is not None:
        minimum, maximum = found.p50_interval
        assert found.min <= minimum <= found.p50 <= maximum <= found.max


def test_an_interval_spans_the_medians_of_sixths() -> None:
    parts = [[3, 3, 9], [5, 1, 5], [4, 4, 4], [2, 8, 2], [6, 6, 1], [7, 1, 5]]
    assert statistics.median_interval(np.array(parts).ravel()) == (2, 6)


def test_intervals_contain_the_median_even_if_runs_are_correlated() -> None:
    rng = np.random.default_rng(0)
    held = {}
    for kept in (0.0, 0.9):  # of the one before, in each run
        noise = rng.lognormal(0, 0.5, size=(2000, 600))
        for run in range(1, noise.shape[1]):
            noise[:, run] = kept * noise[:, run - 1] + (1 - kept) * noise[:, run]
        intervals = np.array([statistics.median_interval(each) for each in noise])
        middle = np.median(noise[:, 100:])
        held[kept] = np.mean((intervals[:, 0] <= middle) & (middle <= intervals[:, 1]))
    assert held[0.0] == pytest.approx(0.97, abs=0.015)
    assert held[0.9] > 0.94


@given(samples, st.integers(1, 64))
def test_rates_are_runs_per_time(runs: np.ndarray, batch: int) -> None:
    found = statistics.throughput(runs, rows=batch * len(runs), tokens=10 * len(runs))
    seconds = runs.sum() / 1e9
    assert found.requests_per_s == pytest.approx(len(runs) / seconds)
    assert found.rows_per_s == pytest.approx(batch * len(runs) / seconds)
    assert found.tokens_per_s == pytest.approx(10 * len(runs) / seconds)
    assert statistics.throughput(runs, rows=1, tokens=None).tokens_per_s is None


def test_the_spread_is_that_of_the_samples() -> None:
    assert statistics.spread(np.arange(0, 101) * 1_000_000) == statistics.Spread(5, 25, 50, 75, 95)
