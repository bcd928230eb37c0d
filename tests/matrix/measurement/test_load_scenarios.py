"""The search for the highest rate, LoadGen's summaries, and load on a target that only waits."""

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from isorun import Session
from isorun_matrix.measurement.load import scenarios
from isorun_matrix.measurement.load.figures import Trial
from isorun_matrix.measurement.load.generator import Generator
from isorun_matrix.measurement.load.search import search
from isorun_matrix.measurement.load.targets import SessionTarget
from isorun_matrix.spec.load_scenario import Load


def at(rate: float, p99: float) -> Trial:
    return Trial(rate, 300, rate, p99 / 2, p99 / 1.5, p99)


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.7, 40.0, 333.0])
def test_a_search_ends_at_the_limit(limit: float) -> None:
    def queue(rate: float) -> Trial:
        return at(rate, 1 / max(1e-9, 1 - 0.9 * rate / limit))  # 10 ms at the limit

    result = search(queue, min(20.0, 10 * limit), 10.0, 0)
    assert result.rate == pytest.approx(limit, rel=0.02)
    assert result.nearest.p99_ms <= 10
    assert limit / 1.1 <= result.between[0] <= result.rate <= result.between[1] <= limit * 1.1


def test_measurements_that_fail_by_chance_do_not_decide() -> None:
    def unlucky(chance: np.random.Generator, rate: float) -> Trial:
        return at(rate, 99.0 if rate > 50 or chance.random() < 0.15 else 5.0)

    rates = []
    for seed in range(100):
        result = search(partial(unlucky, np.random.default_rng(seed)), 40.0, 10.0, seed)
        assert result.between[0] < result.rate < result.between[1]
        rates.append(result.rate)
    assert np.mean([45 < rate < 52 for rate in rates]) > 0.9


def test_three_searches_on_one_server_agree() -> None:
    """Requests take 10 ms, give or take 20 %; arrivals are those of a Poisson process."""

    def queue(chance: np.random.Generator, rate: float) -> Trial:
        count = max(300, round(10 * rate))
        arrivals = np.cumsum(chance.exponential(1 / rate, count))
        taken = 0.01 * chance.lognormal(0.0, 0.2, count)
        before = np.cumsum(taken) - taken
        ends = before + taken + np.maximum.accumulate(arrivals - before)
        return at(rate, float(np.percentile(ends - arrivals, 99)) * 1e3)

    searches = (search(partial(queue, np.random.default_rng(seed)), 50.0, 100.0, seed) for seed in range(30))
    results = [search_result for search_result in searches if search_result is not None]
    rates = np.array([result.rate for result in results]).reshape(10, 3)
    assert np.mean(rates.max(axis=1) / rates.min(axis=1) < 1.1) > 0.9
    assert np.mean([result.between[0] < rates.mean() < result.between[1] for result in results]) > 0.9


def test_a_bound_that_no_rate_meets() -> None:
    rates = []

    def late(rate: float) -> Trial:
        rates.append(rate)
        return at(rate, 99.0)

    assert search(late, 20.0, 10.0, 0) is None
    assert min(rates) < 2  # requests hardly meet


class Waiting:
    """Stands for a session: one request takes 2 ms."""

    def __init__(self, fails: bool = False) -> None:
        self._fails = fails
        self.runs = 0

    def run(self, names: None, feeds: Any) -> list[Any]:
        self.runs += 1
        time.sleep(0.002)
        if self._fails:
            raise RuntimeError("the runtime failed")
        return []


def no_pause(left: int) -> None:
    """The other cells of a run would have their turns now."""


def scenario(kind: str, **changes: Any) -> Load:
    return Load(**{"scenario": kind, "seconds": 0.3, "time_limit": 9.0, **changes})


@pytest.mark.parametrize("kind", ["closed", "single-stream", "offline"])
def test_one_worker_answers_one_request_after_another(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenarios, "_REPEATS", 1)  # other tests disturb every measurement
    if kind != "closed":
        pytest.importorskip("mlperf_loadgen")
    session = Waiting()
    target = SessionTarget(cast(Session, session), cast("list[Any]", [{}]), 1)
    chosen = scenario(kind, clients=4 if kind == "closed" else None)
    measured = scenarios.measure(chosen, target, rows=3, sets=1, typical=0.002, seed=1, logs=tmp_path, pause=no_pause)
    target.close()
    assert 50 < measured.requests_per_s <= 500
    assert measured.rows_per_s == 3 * measured.requests_per_s
    assert sum(trial.requests for trial in measured.trials) == session.runs
    if kind == "closed":
        assert float(measured.result.p50_ms or 0) > 4  # up to three others, of 2 ms each, are in front
    elif kind == "single-stream":
        assert float(measured.result.p50_ms or 0) >= 2
        assert (tmp_path / "loadgen-1" / "mlperf_log_summary.txt").is_file()
    else:
        assert measured.result.p99_ms is None


def test_a_latency_counts_from_the_scheduled_arrival(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_loadgen")
    target = SessionTarget(cast(Session, Waiting()), cast("list[Any]", [{}]), 1)
    generator = Generator(scenario("server", p99_ms=10.0), target, 1, 0, tmp_path)
    calm, busy = generator.trial(100.0, 0.002), generator.trial(2000.0, 0.002)  # four times what it can answer
    target.close()
    assert float(busy.p99_ms or 0) > 100
    assert float(calm.p50_ms or 0) < float(busy.p50_ms or 0) / 4


def test_every_client_sends_a_request_on_a_machine_that_is_late(tmp_path: Path) -> None:
    target = SessionTarget(cast(Session, Waiting()), cast("list[Any]", [{}]), 2)
    late = scenario("closed", clients=2, seconds=1e-6)
    figures = scenarios.measure(late, target, rows=1, sets=1, typical=0.002, seed=1, logs=tmp_path, pause=no_pause)
    target.close()
    assert {trial.requests for trial in figures.trials} == {2}


def test_a_failed_request_is_raised(tmp_path: Path) -> None:
    target = SessionTarget(cast(Session, Waiting(fails=True)), cast("list[Any]", [{}]), 2)
    scenarios.measure(
        scenario("closed", clients=2), target, rows=1, sets=1, typical=0.002, seed=1, logs=tmp_path, pause=no_pause
    )
    with pytest.raises(RuntimeError, match="the runtime failed"):
        target.close()


def test_measurements_beside_other_programs_are_repeated(tmp_path: Path) -> None:
    target = SessionTarget(cast(Session, Waiting()), cast("list[Any]", [{}]), 1)
    chosen = scenario("closed", clients=1, seconds=0.6)
    # Their parent ends at once: what this process started counts as its own.
    burn = "timeout 60 sh -c 'while :; do :; done' >/dev/null 2>&1 & echo $!"
    commands = f"for core in $(seq {os.cpu_count()}); do {burn}; done"
    ran = subprocess.run(["sh", "-c", commands], stdout=subprocess.PIPE, text=True, check=True)
    try:
        measured = scenarios.measure(
            chosen, target, rows=1, sets=1, typical=0.002, seed=1, logs=tmp_path, pause=no_pause
        )
    finally:
        for burner in ran.stdout.split():
            os.kill(int(burner), signal.SIGTERM)
        target.close()
    assert len(measured.trials) == 17
    assert all(trial.disturbed for trial in measured.trials)
