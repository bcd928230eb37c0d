"""``benchmarks/gpu.py`` as far as a machine without a GPU goes: it finds the checkout's backends, says what is missing,
and its stages run, with the CPU's backend in the GPU's place."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from isorun_backends.cuda_driver import driver

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def stages(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_stages", BENCHMARKS / "gpu_stages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "available", lambda stage: [("ort-cpu", "fp32")])
    return module


@pytest.mark.skipif(bool(driver().gpus), reason="there is a GPU: the command would measure it")
def test_without_a_gpu_it_says_so_and_exits_with_3(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--out", str(tmp_path / "out")]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert "No GPU: there is no NVIDIA driver here" in ran.stdout
    for name in ("ort-cuda", "tensorrt", "ort-tensorrt"):
        assert f"\n{name}: " in ran.stdout
    machine = json.loads((tmp_path / "out" / "machine.json").read_text())
    assert machine["gpus"] == []
    assert not any(each["ok"] for each in machine["backends"].values())


def test_a_stage_writes_what_it_found(stages, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "MASKS", {kind: stages.MASKS[kind] for kind in ("left", "masked-row")})
    stage = stages.Stage(tmp_path / "parity.json", quick=True)
    stages.parities(stage)
    stage.write()
    found = json.loads((tmp_path / "parity.json").read_text())
    assert found["passed"]
    assert sum("ort-cpu fp32 left" in line for line in found["lines"]) == len(found["lines"]) / 2 >= 1
    assert found["figures"]["ort-cpu fp32"]["backend"] == "ort-cpu"


def test_what_is_off_fails_a_stage(stages, tmp_path):
    stage = stages.Stage(tmp_path / "x.json", quick=True)
    stage.expect(True, "good")
    assert stage.passed
    stage.expect(False, "bad")
    stage.expect(True, "good again")
    assert not stage.passed
    assert stage.lines[1] == "FAILED bad"


def test_operations_are_those_of_the_matrix_products(stages):
    # 12 layers of 4 x 768 x 768 + 2 x 768 x 3072 weights, two operations each, and two products of scores
    weights = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    assert stages.encoder_operations("bert-base", 1, 128) == 2 * 128 * weights + 12 * 4 * 128 * 128 * 768
