"""The search for the highest rate, LoadGen's summaries, and load on a target that only waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from isorun import Session
from isorun_matrix.jobs import Scenario
from isorun_matrix.measurement import load
from isorun_matrix.measurement.load import Trial


def at(rate: float, p99: float) -> Trial:
    return Trial(rate, 300, rate, p99 / 2, p99 / 1.5, p99)


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.7, 40.0, 333.0])
def test_a_search_ends_just_below_the_limit(limit: float) -> None:
    def queue(rate: float) -> Trial:
        return at(rate, 1 / max(1e-9, 1 - 0.9 * rate / limit))  # 10 ms at the limit

    found, trials = load.search(queue, 20.0, 10.0)
    assert found is not None
    assert limit / 1.06 <= float(found.rate or 0) <= limit
    assert len(trials) < 24


def test_a_rate_has_to_hold_twice() -> None:
    seen: dict[float, int] = {}

    def lucky(rate: float) -> Trial:
        seen[rate] = seen.get(rate, 0) + 1
        return at(rate, 5.0 if rate < 50 or (rate < 80 and seen[rate] == 1) else 50.0)

    found, _ = load.search(lucky, 20.0, 10.0)
    assert found is not None
    assert float(found.rate or 0) < 50


def test_a_bound_that_no_rate_meets() -> None:
    found, trials = load.search(lambda rate: at(rate, 99.0), 20.0, 10.0)
    assert found is None
    assert len(trials) == 15


class Waiting:
    """Stands for a session: one request takes 2 ms."""

    def __init__(self, fails: bool = False) -> None:
        self._fails = fails

    def run(self, names: None, feeds: Any) -> list[Any]:
        time.sleep(0.002)
        if self._fails:
            raise RuntimeError("the runtime failed")
        return []


def scenario(kind: str, **changes: Any) -> Scenario:
    given = {"name": kind, "clients": None, "p99_ms": None, "through": "session", "workers": 1}
    return Scenario(**{"scenario": kind, **given, "seconds": 0.3, "time_limit": 9.0, **changes})


@pytest.mark.parametrize("kind", ["closed", "single-stream", "offline"])
def test_one_worker_answers_one_request_after_another(kind: str, tmp_path: Path) -> None:
    if kind != "closed":
        pytest.importorskip("mlperf_loadgen")
    target = load.SessionTarget(cast(Session, Waiting()), cast("list[Any]", [{}]), 1)
    chosen = scenario(kind, clients=4 if kind == "closed" else None)
    found = load.measure(chosen, target, rows=3, sets=1, typical=0.002, seed=1, logs=tmp_path)
    target.close()
    assert 50 < found.requests_per_s <= 500
    assert found.rows_per_s == 3 * found.requests_per_s
    assert found.result is not None
    if kind == "closed":
        assert float(found.result.p50_ms or 0) > 7  # three others are in front
    elif kind == "single-stream":
        assert float(found.result.p50_ms or 0) >= 2
        assert (tmp_path / "loadgen-1" / "mlperf_log_summary.txt").is_file()
    else:
        assert found.result.p99_ms is None


def test_a_latency_counts_from_the_scheduled_arrival(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_loadgen")
    target = load.SessionTarget(cast(Session, Waiting()), cast("list[Any]", [{}]), 1)
    generator = load._Generator(scenario("server", p99_ms=10.0), target, 1, 0, tmp_path)
    calm, busy = generator.trial(20.0, 0.002), generator.trial(2000.0, 0.002)  # four times what it can answer
    target.close()
    assert float(busy.p99_ms or 0) > 100
    assert float(calm.p50_ms or 0) < float(busy.p50_ms or 0) / 4


def test_a_failed_request_is_raised(tmp_path: Path) -> None:
    target = load.SessionTarget(cast(Session, Waiting(fails=True)), cast("list[Any]", [{}]), 2)
    load.measure(scenario("closed", clients=2), target, rows=1, sets=1, typical=0.002, seed=1, logs=tmp_path)
    with pytest.raises(RuntimeError, match="the runtime failed"):
        target.close()
