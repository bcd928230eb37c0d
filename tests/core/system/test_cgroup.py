from __future__ import annotations

import pytest

from isorun.system import cgroup


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
        return cgroup.cpu_quota(root, tmp_path / "own")

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
    ("own", "files", "found"),
    [
        pytest.param(
            "0::/a\n",
            {
                "a/memory.max": "1000\n",
                "a/memory.current": "900\n",
                "a/memory.stat": "anon 5\ninactive_file 300\nactive_file 7\n",
            },
            (1000, 400),
            id="v2",
        ),
        pytest.param(
            "0::/a/b\n",
            {
                "a/memory.max": "1000",
                "a/memory.current": "900",
                "a/memory.stat": "inactive_file 0",
                "a/b/memory.max": "500",
                "a/b/memory.current": "100",
                "a/b/memory.stat": "inactive_file 0",
            },
            (1000, 100),
            id="v2 least room",
        ),
        pytest.param(
            "0::/\n", {"memory.max": "max\n", "memory.current": "9", "memory.stat": ""}, None, id="v2 without a limit"
        ),
        pytest.param(
            "4:memory:/a\n",
            {
                "memory/a/memory.limit_in_bytes": "1000\n",
                "memory/a/memory.usage_in_bytes": "600\n",
                "memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
            },
            (1000, 500),
            id="v1",
        ),
        pytest.param(
            "4:memory:/\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": "600\n",
                "memory/memory.stat": "total_inactive_file 100\n",
            },
            None,
            id="v1 without a limit",
        ),
        pytest.param("0::/\n", {}, None, id="no files"),
    ],
)
def test_what_is_left_of_memory(tmp_path, own, files, found):
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (tmp_path / "own").write_text(own)
    assert cgroup.memory(tmp_path, tmp_path / "own") == found
