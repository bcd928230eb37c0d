from __future__ import annotations

import gc
import subprocess
import sys
import time
from typing import Any, cast

import numpy as np
import pytest

from isorun import Session
from isorun_matrix import measure


class Recorder:
    """Stands for a session: keeps what it was fed, and takes its time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.fed: list[Any] = []
        self.collecting: list[bool] = []
        self._seconds = seconds

    def run(self, names: None, feeds: Any) -> list[Any]:
        self.fed.append(feeds)
        self.collecting.append(gc.isenabled())
        time.sleep(self._seconds)
        return []


FEEDS = cast("list[Any]", ["a", "b", "c"])


def session(recorder: Recorder) -> Session:
    return cast(Session, recorder)


def test_repetitions_take_the_feeds_in_turn() -> None:
    recorder = Recorder(0.002)
    samples = measure.latencies(session(recorder), FEEDS, 5, None)
    assert recorder.fed == ["a", "b", "c", "a", "b"]
    assert samples.shape == (5,)
    assert samples.dtype == np.int64
    assert (samples >= 2_000_000).all()
    assert recorder.collecting == [False] * 5
    assert gc.isenabled()


def test_seconds_bound_the_runs_but_every_feed_has_its_turn() -> None:
    assert len(measure.latencies(session(Recorder(0.01)), FEEDS, None, 0.1)) in range(3, 11)
    assert len(measure.latencies(session(Recorder(0.02)), FEEDS, None, 0.001)) == 3


def test_an_error_leaves_the_collector_on() -> None:
    class Failing(Recorder):
        def run(self, names: None, feeds: Any) -> list[Any]:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        measure.latencies(session(Failing()), FEEDS, 1, None)
    assert gc.isenabled()


def test_warming_up_stops_at_its_count_or_its_time() -> None:
    recorder = Recorder()
    assert measure.warm_up(session(recorder), FEEDS, 4, None) == 4
    assert recorder.fed == ["a", "b", "c", "a"]
    assert measure.warm_up(session(Recorder()), FEEDS, 0, 1) == 0
    assert measure.warm_up(session(Recorder(0.02)), FEEDS, 1000, 0.05) in range(1, 4)


MEMORY = """
import numpy as np
from isorun_matrix import measure
before = measure.resident_mib()
block = np.ones(64 * 2**20 // 8)
print(measure.resident_mib() - before)
del block
print(measure.peak_resident_mib() - before)
"""


FAMILY = """
import os, subprocess, sys
from isorun_matrix import measure
alone = measure.peak_resident_mib()
assert measure.family() == [os.getpid()]
say = "import sys; block = b'x' * (64 * 2**20); print('ready', flush=True); sys.stdin.read()"
with subprocess.Popen([sys.executable, "-c", say], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    assert measure.family() == [os.getpid(), child.pid]
    print(measure.peak_resident_mib() - alone)
"""


def test_the_memory_of_a_worker_counts() -> None:
    ran = subprocess.run([sys.executable, "-c", FAMILY], capture_output=True, text=True, check=True)
    assert 64 <= float(ran.stdout) < 150


def test_waiting_for_a_core_is_told_from_sleeping() -> None:
    if measure.waited_ns() is None:
        pytest.skip("this kernel does not tell how long threads wait")
    code = """
import os, time
from isorun_matrix.measure import waited_ns
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for busy in (False, True):
    before, end = waited_ns(), time.perf_counter() + 1
    while time.perf_counter() < end:
        busy or time.sleep(1)
    print(waited_ns() - before)
"""
    # Two of them on one core: each has to wait for the other while both compute, and for nobody while they sleep.
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for done in [process.communicate(timeout=60)[0].split() for process in both]:
        asleep, busy = map(int, done)
        assert asleep < busy / 2
        assert busy > 0.25e9


def test_memory_is_that_of_this_process() -> None:
    ran = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    taken, peak = map(float, ran.stdout.split())
    assert taken == pytest.approx(64, abs=8)
    assert peak >= 56
