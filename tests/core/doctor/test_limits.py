"""Limits, by control groups of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isorun.doctor import limits
from isorun.system.cache import Cache
from isorun.system.threads import usable_cores

MIB = 1 << 20


@pytest.fixture
def found(tmp_path, monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    cache = Cache(tmp_path / "cache")

    def findings(files: dict[str, str], model: int | None = None) -> list:
        root = tmp_path / "cgroup"
        root.mkdir()
        for name, content in files.items():
            (root / name).write_text(content)
        (tmp_path / "own").write_text("0::/\n")
        if model is not None:
            cache.get_or_make("lowered", "big", lambda folder: _sparse(folder / "weights.bin", model))
        return list(limits.findings(cache, root, tmp_path / "own"))

    return findings


def _sparse(path: Path, size: int) -> dict:
    with path.open("wb") as file:
        file.truncate(size)
    return {}


def memory(limit: str, used: int, droppable: int = 0) -> dict[str, str]:
    statistics = f"anon 1\ninactive_file {droppable}\n"
    return {"memory.max": f"{limit}\n", "memory.current": f"{used}\n", "memory.stat": statistics}


def test_without_limits_there_is_nothing_to_say(found):
    assert found({"cpu.max": "max 100000\n", **memory("max", 7)}, model=1 << 20) == []


@pytest.mark.parametrize(("quota", "cores"), [("100000", 1), ("150000", 1), ("50000", 1)])
def test_a_quota_below_the_cores_that_are_seen(found, monkeypatch, quota, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3, 5, 7})
    (finding,) = found({"cpu.max": f"{quota} 100000\n"})
    assert finding.what == f"the control group allows {int(quota) / 1e5:g} cores, and 4 can be seen"
    assert finding.command.startswith("taskset -cp 2 $$")


def test_an_affinity_within_the_quota_is_well(found, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    assert found({"cpu.max": "250000 100000\n"}) == []


def test_a_variable_that_asks_for_more_threads_than_there_are_cores(found, monkeypatch):
    cores = usable_cores()
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
    monkeypatch.setenv("MKL_NUM_THREADS", "some")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", str(cores + 3))
    (finding,) = found({})
    assert finding.what.startswith(f"OPENBLAS_NUM_THREADS is {cores + 3}")
    assert finding.command.startswith("export OPENBLAS_NUM_THREADS=")


def test_too_little_memory_for_the_largest_model(found):
    (finding,) = found(memory(str(512 * MIB), 400 * MIB, droppable=12 * MIB), model=200 * MIB)
    assert "leaves 124 of its 512 MiB" in finding.what
    assert "lowered/big has 200 MiB" in finding.what
    assert "--memory 789m" in finding.command


def test_enough_memory_for_it(found):
    assert found(memory(str(512 * MIB), 400 * MIB, droppable=100 * MIB), model=200 * MIB) == []
