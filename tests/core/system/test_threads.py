import os
import sys

import numpy as np
import pytest

from isorun.errors import InvalidArgument
from isorun.system import threads
from isorun.system.threads import usable_cores


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"),
    [({0, 1, 2, 3}, None, 4), ({0, 1, 2, 3}, 2.0, 2), ({0, 1, 2, 3}, 1.5, 2), ({0}, 8.0, 1), ({0, 1}, 0.1, 1)],
)
def test_usable_cores_respect_affinity_and_quota(monkeypatch, affinity, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    assert usable_cores() == cores


@pytest.mark.parametrize("count", [0, -1, 1.0, "2", True, 10**6])
def test_rejects_invalid_threads(count):
    with pytest.raises(InvalidArgument, match="integer from 1 to 1024"):
        threads.check(count)


@pytest.mark.parametrize("count", [None, 1, np.int64(2), threads.MOST])
def test_accepts_threads(count):
    threads.check(count)


def test_nothing_of_python_runs_between_a_condition_and_its_block():
    """A handler of a signal could raise there, and the lock would stay locked."""
    codes = []
    condition = threads.Condition()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: codes.append(frame.f_code.co_name) if event == "call" else None)
    try:
        with condition:
            pass
    finally:
        sys.setprofile(before)
    assert codes == []
