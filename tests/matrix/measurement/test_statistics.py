from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isorun_matrix.measurement import statistics as stats

samples = st.lists(st.integers(1, 10**12), min_size=1, max_size=300).map(lambda items: np.array(items, dtype=np.int64))


def test_figures_of_a_hundred_runs() -> None:
    found = stats.latency(np.arange(1, 101) * 1_000_000)
    assert found["samples"] == 100
    assert (found["min"], found["max"], found["mean"]) == (1, 100, 50.5)
    assert found["std"] == pytest.approx(29.0115, abs=1e-4)
    # type 7: p50 lies half-way between the 50th and the 51st
    assert [found[f"p{p}"] for p in stats.PERCENTILES] == pytest.approx([50.5, 90.1, 95.05, 99.01])
    assert found["notes"] == []


@pytest.mark.parametrize(("percentile", "needed"), [(50, 2), (90, 10), (95, 20), (99, 100)])
def test_a_percentile_is_given_from_as_many_samples_as_it_needs(percentile: int, needed: int) -> None:
    assert stats.samples_needed(percentile) == needed
    enough, few = stats.latency(np.full(needed, 7)), stats.latency(np.full(needed - 1, 7))
    assert enough[f"p{percentile}"] is not None
    assert few[f"p{percentile}"] is None
    are = "is 1" if needed == 2 else f"are {needed - 1}"
    assert f"p{percentile} needs {needed} samples; there {are}" in few["notes"]


def test_without_samples_nothing_is_invented() -> None:
    found = stats.latency(np.array([], dtype=np.int64))
    assert found["samples"] == 0
    assert all(found[name] is None for name in ("min", "mean", "std", "p50", "p99", "max"))
    rates = stats.throughput(np.array([], dtype=np.int64), 0, 0)
    assert rates == {"requests_per_s": None, "rows_per_s": None, "tokens_per_s": None}


@given(samples)
def test_figures_are_in_order_and_do_not_depend_on_the_order_of_runs(runs: np.ndarray) -> None:
    found = stats.latency(runs)
    known = [found[name] for name in ("min", "p50", "p90", "p95", "p99", "max") if found[name] is not None]
    assert known == sorted(known)
    assert found["min"] <= found["mean"] * (1 + 1e-12)
    again = stats.latency(runs[::-1])
    of_order = ("mean", "std", "p50_interval")
    assert {name: value for name, value in found.items() if name not in of_order} == {
        name: value for name, value in again.items() if name not in of_order
    }


@given(samples)
def test_a_median_lies_in_its_interval(runs: np.ndarray) -> None:
    found = stats.latency(runs)
    if len(runs) < 2:
        assert found["p50_interval"] is None
        return
    least, greatest = found["p50_interval"]
    assert least <= found["p50"] <= greatest
    assert (found["min"], found["max"]) <= (least, greatest) or len(runs) > 6


def test_an_interval_is_of_the_medians_of_sixths() -> None:
    parts = [[3, 3, 9], [5, 1, 5], [4, 4, 4], [2, 8, 2], [6, 6, 1], [7, 1, 5]]
    assert stats.median_interval(np.array(parts).ravel()) == [2, 6]


def test_nineteen_of_twenty_intervals_hold_the_median_also_where_runs_resemble_their_neighbours() -> None:
    rng = np.random.default_rng(0)
    held = {}
    for kept in (0.0, 0.9):  # of the one before, in each run
        noise = rng.lognormal(0, 0.5, size=(2000, 600))
        for run in range(1, noise.shape[1]):
            noise[:, run] = kept * noise[:, run - 1] + (1 - kept) * noise[:, run]
        intervals = np.array([stats.median_interval(each) for each in noise])
        middle = np.median(noise[:, 100:])
        held[kept] = np.mean((intervals[:, 0] <= middle) & (middle <= intervals[:, 1]))
    assert held[0.0] == pytest.approx(0.97, abs=0.015)
    assert held[0.9] > 0.94


@given(samples, st.integers(1, 64))
def test_rates_are_runs_over_the_time_they_took(runs: np.ndarray, batch: int) -> None:
    found = stats.throughput(runs, rows=batch * len(runs), tokens=10 * len(runs))
    seconds = runs.sum() / 1e9
    assert found["requests_per_s"] == pytest.approx(len(runs) / seconds)
    assert found["rows_per_s"] == pytest.approx(batch * len(runs) / seconds)
    assert found["tokens_per_s"] == pytest.approx(10 * len(runs) / seconds)
    assert stats.throughput(runs, rows=1, tokens=None)["tokens_per_s"] is None


def test_the_spread_is_that_of_the_samples() -> None:
    assert stats.spread(np.arange(0, 101) * 1_000_000) == {"p5": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95}
