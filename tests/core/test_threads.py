from __future__ import annotations

import os

import pytest

from isorun import threads
from isorun.threads import cgroup_quota, usable_cores


@pytest.fixture
def group(tmp_path):
    """Write files of control groups; ask for the quota that follows from them."""
    root = tmp_path / "cgroup"
    root.mkdir()

    def quota(own: str | None, files: dict[str, str]) -> float | None:
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        if own is not None:
            (tmp_path / "own").write_text(own)
        return cgroup_quota(root, tmp_path / "own")

    return quota


V1 = "12:cpuset:/a\n4:cpu,cpuacct:/a/b\n0::/\n"


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        pytest.param("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5, id="v2"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, None, id="v2 without a limit"),
        pytest.param(
            "0::/a/b\n", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "400000 100000"}, 1.0, id="v2 tightest"
        ),
        pytest.param("0::/a/b\n", {"a/cpu.max": "max 100000", "a/b/cpu.max": "50000 100000"}, 0.5, id="v2 own"),
        pytest.param("0::/a\n", {"other/cpu.max": "1000 100000"}, None, id="v2 of another group"),
        pytest.param(
            V1, {"cpu/a/b/cpu.cfs_quota_us": "300000\n", "cpu/a/b/cpu.cfs_period_us": "100000\n"}, 3.0, id="v1"
        ),
        pytest.param(
            V1, {"cpu/a/b/cpu.cfs_quota_us": "-1\n", "cpu/a/b/cpu.cfs_period_us": "100000\n"}, None, id="v1 none"
        ),
        pytest.param(V1, {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0, id="v1 container"),
        pytest.param("0::/\n", {}, None, id="no files"),
        pytest.param(None, {"cpu.max": "100000 100000"}, None, id="no control groups"),
    ],
)
def test_the_quota_of_the_control_group(group, own, files, cores):
    assert group(own, files) == cores


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"),
    [({0, 1, 2, 3}, None, 4), ({0, 1, 2, 3}, 2.0, 2), ({0, 1, 2, 3}, 1.5, 2), ({0}, 8.0, 1), ({0, 1}, 0.1, 1)],
)
def test_usable_cores_are_what_affinity_and_quota_leave(monkeypatch, affinity, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    monkeypatch.setattr(threads, "cgroup_quota", lambda: quota)
    assert usable_cores() == cores


def test_a_narrower_affinity_is_noticed():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
