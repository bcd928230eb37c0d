from __future__ import annotations

import subprocess
import sys

import pytest

from isorun_matrix.measurement import process_usage

MEMORY = """
import numpy as np
from isorun_matrix.measurement import process_usage
before = process_usage.resident_mib()
block = np.ones(64 * 2**20 // 8)
print(process_usage.resident_mib() - before)
del block
print(process_usage.peak_resident_mib() - before)
"""


FAMILY = """
import os, subprocess, sys
from isorun_matrix.measurement import process_usage
alone = process_usage.peak_resident_mib()
assert process_usage.family() == [os.getpid()]
say = "import sys; block = b'x' * (64 * 2**20); print('ready', flush=True); sys.stdin.read()"
with subprocess.Popen([sys.executable, "-c", say], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    assert process_usage.family() == [os.getpid(), child.pid]
    print(process_usage.peak_resident_mib() - alone)
"""


def test_memory_includes_descendants() -> None:
    ran = subprocess.run([sys.executable, "-c", FAMILY], capture_output=True, text=True, check=True)
    assert 64 <= float(ran.stdout) < 150


def test_waiting_for_a_core_differs_from_sleeping() -> None:
    if process_usage.scheduled().waited is None:
        pytest.skip("this kernel does not tell how long threads wait")
    code = """
import os, time
from isorun_matrix.measurement.process_usage import scheduled
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


def test_memory_of_this_process() -> None:
    ran = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    taken, peak = map(float, ran.stdout.split())
    assert taken == pytest.approx(64, abs=8)
    assert peak >= 56
