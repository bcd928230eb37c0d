from __future__ import annotations

import os

import pytest

from isorun import threads
from isorun.threads import usable_cores


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"),
    [({0, 1, 2, 3}, None, 4), ({0, 1, 2, 3}, 2.0, 2), ({0, 1, 2, 3}, 1.5, 2), ({0}, 8.0, 1), ({0, 1}, 0.1, 1)],
)
def test_usable_cores_are_what_affinity_and_quota_leave(monkeypatch, affinity, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    assert usable_cores() == cores


def test_a_narrower_affinity_is_noticed():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
