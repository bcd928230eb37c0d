"""``benchmarks/gpu.py`` as far as a machine without a GPU goes: it finds the checkout's backends, says what is missing,
and its stages run, with the CPU's backend in the GPU's place."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from isorun_backends.nvidia.cuda_driver import driver

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


MODULES = ("gpu_stage", "gpu_correctness", "gpu_speed", "gpu_embedding", "gpu_packing", "gpu_stages")


@pytest.fixture
def load(monkeypatch):
    """Imports a module of ``benchmarks/``, for this test only."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("gpu", *MODULES):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in ("gpu", *MODULES):
        sys.modules.pop(name, None)


@pytest.fixture
def replace(load, monkeypatch):
    """Replaces a name in every module of the stages that has it."""

    def set_everywhere(name, value):
        modules = [module for module in map(load, MODULES) if hasattr(module, name)]
        assert modules, name
        for module in modules:
            monkeypatch.setattr(module, name, value)

    return set_everywhere


@pytest.fixture
def stages(load, replace):
    replace("available", lambda stage: [("ort-cpu", "fp32")])
    return SimpleNamespace(**{name: value for module in map(load, MODULES) for name, value in vars(module).items()})


@pytest.mark.skipif(bool(driver().gpus), reason="there is a GPU: the command would measure it")
def test_without_a_gpu_it_says_so_and_exits_with_3(load, tmp_path):
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--out", str(tmp_path / "out")]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert "No GPU: " in ran.stdout
    for name in ("ort-cuda", "tensorrt", "ort-tensorrt"):
        assert f"\n{name}: " in ran.stdout
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert list(summary["stages"]) == list(load("gpu").STAGES) == list(load("gpu_stages").STAGES)
    for name in summary["stages"]:
        assert f"\n{name}: skipped\n  skipped: no GPU: " in ran.stdout
    machine = json.loads((tmp_path / "out" / "machine.json").read_text(encoding="utf-8"))
    assert machine["gpus"] == []
    assert not any(backend["ok"] for backend in machine["backends"].values())


def test_a_stage_writes_what_it_found(stages, replace, tmp_path):
    replace("MASKS", {kind: stages.MASKS[kind] for kind in ("left", "masked-row")})
    stage = stages.Stage(tmp_path / "parity.json", quick=True)
    stages.parities(stage)
    stage.write()
    written = json.loads((tmp_path / "parity.json").read_text(encoding="utf-8"))
    assert written["passed"]
    assert sum("ort-cpu fp32 left" in line for line in written["lines"]) == len(written["lines"]) / 2 >= 1
    assert written["figures"]["ort-cpu fp32"]["backend"] == "ort-cpu"


def test_the_first_stage_runs_every_backend_and_says_whether_it_is_right(stages, tmp_path):
    stage = stages.Stage(tmp_path / "smoke.json", quick=True)
    stages.smoke(stage)
    (line,) = json.loads((tmp_path / "smoke.json").read_text(encoding="utf-8"))["lines"]
    assert line.startswith("ok     ort-cpu fp32: off by ")
    assert line.endswith("no device events")


@pytest.mark.long
def test_exports_are_compared_with_their_untouched_selves(stages, replace, tmp_path):
    stage = stages.Stage(tmp_path / "exports.json", quick=True)
    stages.exports(stage)
    assert stage.passed, stage.lines
    assert len(stage.figures) == 6
    replace("EXPORTS_OFF", {"fp32": -1.0})
    stages.exports(stage)
    assert stage.passed is False
    assert sum(": off by " in line for line in stage.lines) == 6


@pytest.mark.long
def test_removed_padding_is_compared_and_timed(stages, replace, tmp_path):
    ways = stages.WAYS["ort-cuda"]
    wishes = {"WAYS": {"ort-cpu": ways}, "PACKED_SHAPES": ((4, 64),), "SECONDS": 0.05}
    for name, value in {**wishes, "MASKS": {kind: stages.MASKS[kind] for kind in ("left", "none")}}.items():
        replace(name, value)
    stage = stages.Stage(tmp_path / "packing.json", quick=True)
    stages.packing(stage)
    assert stage.passed, stage.lines
    assert sum(line.startswith("ok     ort-cpu fp32, padding removed left") for line in stage.lines) >= 2
    figures = stage.figures["bert-3l ort-cpu fp32 4x64"]
    assert list(figures) == ["tokens", *ways]
    assert 0 < figures["tokens"] < 4 * 64
    assert any(", groups: host " in line and line.endswith(" of the padded batch, device -") for line in stage.lines)


@pytest.mark.long
def test_what_fails_is_a_line_and_the_others_go_on(stages, replace, tmp_path):
    replace("available", lambda stage: [("ort-cpu", "fp8"), ("ort-cpu", "fp32")])
    stage = stages.Stage(tmp_path / "threads.json", quick=True)
    stages.threads(stage)
    assert stage.lines[0].startswith("FAILED ort-cpu fp8 cannot be opened: ")
    assert stage.lines[1].startswith("ok     ort-cpu fp32: 0 errors in 4 x 50 runs")
    assert stage.passed is False
    with stage.trying("this"):
        raise ZeroDivisionError("by nothing")
    assert (
        json.loads(stage.file.read_text(encoding="utf-8"))["lines"][-1] == "FAILED this: ZeroDivisionError: by nothing"
    )


def test_a_stage_that_hangs_or_dies_leaves_what_it_had_found(load, tmp_path, monkeypatch):
    gpu = load("gpu")
    (tmp_path / "gpu_stages.py").write_text(
        "import json, pathlib, signal, sys, time\n"
        "found = {'passed': True, 'ended': False, 'lines': ['ok     this much'], 'figures': {}}\n"
        "pathlib.Path(sys.argv[2]).write_text(json.dumps(found))\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "time.sleep(600) if sys.argv[1] == 'limits' else sys.exit(7)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu, "GRACE", 0.2)
    hung = gpu.run_stage("limits", tmp_path, 2, quick=True)
    dead = gpu.run_stage("smoke", tmp_path, 60, quick=True)
    assert hung["lines"][0] == "ok     this much"
    assert hung["lines"][1].startswith("FAILED did not end within 2 s")
    assert dead["lines"][-1].startswith("FAILED ended with 7")
    assert (hung["passed"], dead["passed"]) == (False, False)


def test_the_fastest_way_that_was_right_is_timed(stages, tmp_path):
    stage = stages.Stage(tmp_path / "times.json", quick=True)
    assert stages.best(stage, "ort-cuda", "fp16") == ("lengths", True), "nothing was tried"
    smoke = stages.Stage(tmp_path / "smoke.json", quick=True)
    for form, graphs in stages.ways("ort-cuda"):
        smoke.figures[stages.key("ort-cuda", "fp16", form, graphs=graphs)] = {"ok": form == "plain" or not graphs}
    smoke.write()
    assert stages.best(stage, "ort-cuda", "fp16") == ("plain", True)
    smoke.figures["ort-cuda fp16 plain with graphs"] = {"ok": False}
    smoke.write()
    assert stages.best(stage, "ort-cuda", "fp16") == ("lengths", False)
    assert stages.best(stage, "ort-cuda", "fp32") == ("lengths", True)
    wanted = stages.options_of(stage, "ort-cuda", "fp16", [], "bias by CUTLASS")
    assert wanted == {"attention": "bias", "provider_options": {"sdpa_kernel": 2}}
    assert stages.options_of(stage, "ort-cuda", "fp32", [])["cuda_graphs"] == 16
