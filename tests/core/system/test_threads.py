from __future__ import annotations

import os

import numpy as np
import pytest

from isorun.system import threads
from isorun.system.threads import usable_cores


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"),
    [({0, 1, 2, 3}, None, 4), ({0, 1, 2, 3}, 2.0, 2), ({0, 1, 2, 3}, 1.5, 2), ({0}, 8.0, 1), ({0, 1}, 0.1, 1)],
)
def test_usable_cores_are_what_affinity_and_quota_leave(monkeypatch, affinity, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    assert usable_cores() == cores


@pytest.mark.parametrize("given", [0, -1, 1.0, "2", True, 10**6])
def test_what_is_no_number_of_threads(given):
    with pytest.raises(ValueError, match="a whole number from 1 to 1024, and None takes what is there"):
        threads.check(given)


@pytest.mark.parametrize("given", [None, 1, np.int64(2), threads.MOST])
def test_a_number_of_threads(given):
    threads.check(given)


def test_a_narrower_affinity_is_noticed():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
