import subprocess
import sys
import threading
import time

import pytest

from isorun.system import disturbance
from isorun.system.disturbance import Attempts, Scheduled, scheduled

pytestmark = pytest.mark.skipif(scheduled().ran is None, reason="this kernel does not report the time of processes")


def test_waiting_for_a_core_differs_from_sleeping() -> None:
    if scheduled().waited is None:
        pytest.skip("this kernel does not tell how long threads wait")
    code = """
import os, time
from isorun.system.disturbance import scheduled
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for busy in (False, True):
    before, end = scheduled().waited, time.perf_counter() + 1
    while time.perf_counter() < end:
        busy or time.sleep(1)
    print(scheduled().waited - before)
"""
    # Two of them on one core: each has to wait for the other while both compute, and for nobody while they sleep.
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for done in [process.communicate(timeout=60)[0].split() for process in both]:
        asleep, busy = map(int, done)
        assert asleep < busy / 2
        assert busy > 0.25e9


def test_time_of_ended_threads_counts() -> None:
    def compute() -> None:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass

    before = scheduled().ran
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    after = scheduled().ran
    assert before is not None
    assert after is not None
    assert after - before >= 0.19e9


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [([0.0], [False]), ([0.5] * 9, [True] * 3), ([0.5, 0.0], [True, False])],
    ids=["calm", "always disturbed", "disturbed once"],
)
def test_disturbed_measurements_are_repeated(
    foreign: list[float], expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counters are those of a machine on which others have a share of all cores during each measurement."""
    monkeypatch.setattr(disturbance.os, "cpu_count", lambda: 1)
    busy, taken = 0.0, iter(foreign)

    def measure() -> str:
        nonlocal busy
        start = time.perf_counter_ns()
        time.sleep(0.01)
        busy += (time.perf_counter_ns() - start) * next(taken)
        return "result"

    monkeypatch.setattr(disturbance, "scheduled", lambda: Scheduled(0, 0, 0, int(busy)))
    assert list(Attempts(2)(measure)) == [("result", disturbed) for disturbed in expected]


def test_counters_of_several_times_add_up() -> None:
    first, second = Scheduled(10, 5, None, 7), Scheduled(30, 2, 4, 9)
    assert second.since(first) == Scheduled(20, 0, None, 2)  # a thread that had waited has ended
    assert second.plus(first) == Scheduled(40, 7, None, 16)
    assert Scheduled(20, 0, None, 2).shares(80) == (0.25, 0, None, 0.025)
