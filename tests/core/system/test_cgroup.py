import pytest

from isorun.system import cgroup


@pytest.fixture
def group(tmp_path):
    """Writes files of control groups and returns what is read from them."""
    root = tmp_path / "cgroup"
    root.mkdir()

    def limit(read, own: str | None, files: dict[str, str]) -> float | None:
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        if own is not None:
            (tmp_path / "own").write_text(own)
        return read(root, tmp_path / "own")

    return limit


V1 = "12:cpuset:/a\n4:cpu,cpuacct:/a/b\n0::/\n"


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        pytest.param("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5, id="v2"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, None, id="v2 unlimited"),
        pytest.param(
            "0::/a/b\n", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "400000 100000"}, 1.0, id="v2 smallest"
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
def test_cpu_quota(group, own, files, cores):
    assert group(cgroup.cpu_quota, own, files) == cores


@pytest.mark.parametrize(
    ("own", "folder", "files", "left"),
    [
        pytest.param(
            "0::/a\n", "a", {"max": "4096", "current": "1000", "stat": "anon 8\ninactive_file 96\n"}, 3192, id="v2"
        ),
        pytest.param("0::/a\n", "a", {"max": "max", "current": "1000", "stat": ""}, None, id="v2 unlimited"),
        pytest.param("0::/a\n", "a", {"max": "4096", "current": "5000", "stat": ""}, 0, id="v2 exceeded"),
        pytest.param(
            "7:memory:/a\n",
            "memory/a",
            {"limit_in_bytes": "8192", "usage_in_bytes": "100", "stat": "total_inactive_file 8\n"},
            8100,
            id="v1",
        ),
        pytest.param(None, "", {}, None, id="no control groups"),
    ],
)
def test_memory_left(group, own, folder, files, left):
    files = {f"{folder}/memory.{name}": content for name, content in files.items()}
    assert group(cgroup.memory_left, own, files) == left
