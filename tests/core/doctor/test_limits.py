"""Thread pools that are larger than what this process may use."""

from __future__ import annotations

import os

import pytest

from isorun.doctor import limits
from isorun.system import threads


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "cpu_quota", lambda: 1.5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})


def commands() -> list[str]:
    return [finding.command for finding in limits.findings()]


def test_no_finding_if_the_quota_covers_the_affinity():
    assert commands() == []


def test_quota_below_the_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5, 7})
    assert commands() == ["export OMP_NUM_THREADS=2"]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert commands() == []


def test_variable_that_requests_too_many_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("MKL_NUM_THREADS", "some")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "5")
    assert commands() == ["export OPENBLAS_NUM_THREADS=2"]
