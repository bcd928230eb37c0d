"""``isorun doctor``: what it prints, its exit codes, and that it changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import sites
from isorun.isolation import environments
from isorun.system.cache import ENVIRONMENT_VARIABLE, Cache
from isorun.system.cgroup import cpu_quota


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folders that it examines. The affinity is within the quota, since the tests may run in a container."""
    for variable, folder in (
        (ENVIRONMENT_VARIABLE, "cache"),
        (environments.FOLDER_VARIABLE, "environments"),
        ("XDG_CACHE_HOME", "xdg"),
        ("PYTHONPATH", "site"),
    ):
        monkeypatch.setenv(variable, str(tmp_path / folder))
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    cores = os.sched_getaffinity(0)
    quota = cpu_quota() or len(cores)
    os.sched_setaffinity(0, sorted(cores)[: max(1, int(quota))])
    yield tmp_path
    os.sched_setaffinity(0, cores)


def everything(folder: Path) -> dict[Path, tuple[int, bytes | None]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None) for path in folder.rglob("*")
    }


def test_no_findings(isorun, home):
    ran = isorun("doctor")
    assert (ran.code, ran.out) == (0, "No problems found\n")
    assert isorun("doctor", "--json").json == []
    assert everything(home) == {}


def test_findings_have_commands_and_nothing_is_changed(isorun, home):
    cache = Cache()
    cache.get_or_make("lowered", "one", lambda folder: {"bytes": (folder / "model.onnx").write_bytes(b"model")})
    (cache.root / "lowered" / "one" / "model.onnx").write_bytes(b"")
    broken = home / "environments" / "broken"
    broken.mkdir(parents=True)
    (broken / "environment.json").write_text('{"python": "3.11.7", "install": []}')
    sites.install(home / "site", "boom-dist", "1.0", {"boom.py": "import gone"}, {"boom": "boom:Boom"})
    before = everything(home)
    ran = isorun("doctor")
    assert everything(home) == before
    assert (ran.code, ran.err) == (1, "")
    assert "warning: the cache" in ran.out
    assert "\n  isorun cache --clear\n" in ran.out
    assert "rm -r" not in ran.out
    assert "error: the environment broken: its interpreter is missing" in ran.out
    assert "error: the backend boom: it cannot be loaded\n" in ran.out
    listed = isorun("doctor", "--json")
    assert listed.code == 1
    assert len(listed.json) == 3
    for each in listed.json:
        assert list(each) == ["subject", "severity", "what", "why", "command"]
        assert all(each.values())
