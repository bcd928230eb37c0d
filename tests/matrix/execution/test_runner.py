"""Whole runs through the command line: what becomes of each cell."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matrix_runs import SLOW, Isorun, cells_of, processes_of, slow_spec, spec_file

EVERYTHING = """
models: {tiny: {path: tiny.onnx}}
shapes: [2x8]
reference: {backend: fake}
repetitions: 4
rounds: 1
repeats: 0
warmup: 1
masks: [none, right, left, holes, masked-row]
seed: 0
backends:
  - {name: fake, label: right, precisions: [fp32, bf16]}
  - fake-broken
"""
MOODS = ("zeros", "nan", "crash", "crash-at-end", "exit", "raise", "chatty", "narrow", "left")
LACKS = ("unavailable", "unsupported")


@pytest.mark.long
def test_compares_the_required_outputs(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    models = "whole: {path: tiny.onnx}, part: {path: tiny.onnx, outputs: [pooled]}"
    models += ", wrong: {path: tiny.onnx, outputs: [poled]}"
    spec = SLOW.replace("tiny: {path: tiny.onnx}", models) + "  - {name: fake, options: {do: zeros}}\n"
    out = tmp_path / "out"
    isorun("run", spec_file(tmp_path, spec), "--out", out)
    cells = {name.partition("/")[0]: cell for name, cell in cells_of(isorun, out).items()}
    assert [cells[name]["status"] for name in ("whole", "part", "wrong")] == [*["parity-failed"] * 2, "skipped"]
    assert cells["whole"]["reason"].startswith("last_hidden_state: ")
    assert cells["part"]["reason"].startswith("pooled: ")
    assert "no output 'poled'; did you mean 'pooled'?" in cells["wrong"]["reason"]


def test_every_status_of_a_cell(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    moods = "\n".join(f"  - {{name: fake, label: {mood}, options: {{do: {mood}}}}}" for mood in MOODS + LACKS)
    out = tmp_path / "out"
    done = isorun("run", spec_file(tmp_path, EVERYTHING + moods), "--out", out)
    assert done.returncode == 1, done.stderr
    cells = {name.split("/")[2]: cell for name, cell in cells_of(isorun, out).items() if not name.endswith("bf16")}
    expected = {
        "right": ("ok", None),
        "fake-broken": ("unavailable", "does not exist"),
        "zeros": ("parity-failed", "max_rel is 1"),
        "nan": ("parity-failed", "NaN"),
        "crash": ("crashed", "SIGSEGV"),
        "crash-at-end": ("crashed", "SIGABRT"),
        "exit": ("error", "exit(0)"),
        "raise": ("error", "run() raised RuntimeError: a bug in a plugin"),
        "chatty": ("ok", None),
        "unavailable": ("unavailable", "it has no such device"),
        "unsupported": ("unsupported", "fake lacks Gather"),
        "left": ("parity-failed", "(on mask-left: 1 of 9 feeds)"),
        "narrow": ("error", "fake must compute in fp32, but reports bf16"),
    }
    outcomes = {label: (cell["status"], cell["reason"]) for label, cell in cells.items()}
    assert {label: status for label, (status, _) in outcomes.items()} == {
        label: status for label, (status, _) in expected.items()
    }
    for label, (_, reason) in expected.items():
        assert reason is None or reason in outcomes[label][1], outcomes[label]

    assert cells["unavailable"]["remedy"] == "Buy one."
    assert "Segmentation fault" in cells["crash"]["log"]
    (log,) = out.glob("cells/tiny/2x8/chatty/fp32/*/round-1/log.txt")
    assert log.read_text(encoding="utf-8").count("the runtime says hello") > 4
    assert "tiny/2x8/unavailable/fp32: it has no such device. Buy one." in done.stdout
    assert processes_of(out) == []

    assert cells["chatty"]["device_ms"]["max"] == pytest.approx(0.099)
    right = cells["right"]
    assert right["device_ms"] is None
    assert right["parity"]["verdict"] == "pass"
    assert list(right["parity"]["cases"]) == [
        *(f"feeds-{index}" for index in range(4)),
        *(f"mask-{kind}" for kind in ("none", "right", "left", "holes", "masked-row")),
    ]
    assert right["latency_ms"]["samples"] == 4
    assert [measured["number"] for measured in right["rounds"]] == [1]
    assert right["waited"] is None or right["waited"] >= 0
    assert right["cpu_ms"] is None or right["cpu_ms"] > 0
    assert right["latency_ms"]["p99"] is None
    assert "p99 needs 100 samples, got 4" in right["latency_ms"]["notes"]
    assert right["throughput"]["tokens_per_s"] == pytest.approx(16 * right["throughput"]["requests_per_s"])
    assert right["memory_mib"]["peak"] >= right["memory_mib"]["before_load"] > 0
    assert right["provenance"]["operators"] == {"fake": {"Sin": 1}}
    twin = out / "cells/tiny/2x8/right~control/fp32"
    places = {
        json.loads(path.read_text(encoding="utf-8"))["round"]["position"] for path in twin.glob("*/round-*/result.json")
    }
    (first,) = out.glob("cells/tiny/2x8/right/fp32/*/round-1/result.json")
    order = json.loads(first.read_text(encoding="utf-8"))["round"]["order"]
    assert {"tiny/2x8/right/fp32", "tiny/2x8/right~control/fp32", "tiny/2x8/zeros/fp32"} <= set(order)
    assert places <= set(range(len(order)))
    with np.load(first.with_name("samples.npz")) as samples:
        assert samples["latency/ns"].shape == (4,)
        assert samples["latency/feeds"].tolist() == [0, 1, 2, 3]
    assert cells["zeros"]["latency_ms"]["samples"] == 4  # it is timed, and never marked as the fastest

    page = isorun("report", out, "--format", "html", "--output", tmp_path / "report.html")
    assert page.returncode == 0
    assert "Segmentation fault" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_a_cell_that_fails_between_its_turns_does_not_stop_the_others(
    isorun: Isorun, tiny: Path, tmp_path: Path
) -> None:
    moods = ["right", "crash", "exit", "hang"]
    spec = SLOW.replace("rounds: 1", "rounds: 2").replace("repetitions: 12", "repetitions: 40")
    spec = spec.replace("backends:", "time_limit: 4\nbackends:")
    spec += "".join(f"  - {{name: fake, label: {do}, options: {{do: {do}, after: 25}}}}\n" for do in moods)
    out = tmp_path / "out"
    done = isorun("run", spec_file(tmp_path, spec), "--out", out)
    assert done.returncode == 1, done.stderr
    cells = {name.split("/")[2]: cell for name, cell in cells_of(isorun, out).items()}
    expected = {"right": "ok", "crash": "crashed", "exit": "error", "hang": "timeout"}
    assert {label: cell["status"] for label, cell in cells.items()} == expected
    assert "4 s" in cells["hang"]["reason"]
    assert "waiting for a device that never answers" in cells["hang"]["log"]
    assert "isorun_fakes.py" in cells["hang"]["log"]  # the stack at the time limit
    assert "in run" in cells["hang"]["log"]
    assert len(cells["right"]["rounds"]) == 2
    assert not (out / ".work").exists()


def test_a_failed_model_or_reference_skips_its_own_cells(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    models = "broken: {path: broken.onnx}, tiny: {path: tiny.onnx, shapes: [1x4, {batch: 1}, 2x4]}"
    text = SLOW.replace("tiny: {path: tiny.onnx}", models) + "  - fake\n"
    out = tmp_path / "out"
    done = isorun("run", spec_file(tmp_path, text), "--out", out)
    assert done.returncode == 1
    cells = cells_of(isorun, out)
    assert {name: cell["status"] for name, cell in cells.items()} == {
        "broken/1x4/fake/fp32": "skipped",
        "tiny/1x4/fake/fp32": "ok",
        "tiny/1/fake/fp32": "skipped",
        "tiny/2x4/fake/fp32": "ok",
    }
    assert "model 'broken' could not be prepared" in cells["broken/1x4/fake/fp32"]["reason"]
    assert "'sequence'" in cells["tiny/1/fake/fp32"]["reason"]

    computed = [line for line in done.stderr.splitlines() if "Computing" in line]
    together = "Computing the reference of tiny/1x4, tiny/1, tiny/2x4"  # in one session
    assert computed == [together, "Computing the reference of tiny/1"]
    results = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("references/tiny/*/*/result.json")]
    assert sorted(result["status"] for result in results) == ["error", "ok", "ok"]
    files = [result["files"].keys() for result in results if result["status"] == "ok"]
    assert files == [{"feeds.npz", "job.json", "outputs.npz"}] * 2
    assert not [*out.rglob("outcome.json")]


def test_the_real_backends_agree(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    text = SLOW.replace("1x4", "{batch: 4, sequence: 16, lengths: {distribution: lognormal, median: 6}}")
    text = text.replace("reference: {backend: fake}", "masks: [none, right, left, holes, masked-row]")
    text += "  - {name: ort-cpu, threads: 1}\n  - reference\n"
    out = tmp_path / "out"
    done = isorun("run", spec_file(tmp_path, text), "--out", out)
    assert done.returncode == 0, done.stderr
    cells = cells_of(isorun, out)
    assert [cell["status"] for cell in cells.values()] == ["ok"] * 2
    threads = {name: cells[f"tiny/4x16-lognormal/{name}/fp32"]["threads"] for name in ("ort-cpu", "reference")}
    assert threads == {"ort-cpu": 1, "reference": None}
    for cell in cells.values():
        levels = {output["name"]: output["level"] for output in cell["parity"]["cases"]["feeds-0"]["outputs"]}
        assert levels == {"last_hidden_state": "token", "pooled": "sequence"}


def test_exits_with_3_if_no_backend_is_available(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    text = SLOW + "  - {name: fake, options: {do: unavailable}}"
    assert isorun("run", spec_file(tmp_path, text), "--out", tmp_path / "out").returncode == 3


def test_rejects_a_folder_that_is_not_writable(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = isorun("run", slow_spec(tmp_path, 1), "--out", tmp_path / "file" / "out", refused=True)
    assert done.returncode == 2
    assert f"{tmp_path / 'file' / 'out'}" in done.stderr


@pytest.mark.long  # tests/matrix/measurement/test_load_scenarios.py runs each alone
def test_load_scenarios(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlperf_loadgen")
    text = SLOW.replace("{backend: fake}", "{backend: ort-cpu, precision: fp32}")
    text = text.replace("backends:", "load: [{scenario: server, p99_ms: 50, seconds: 0.5}]\nbackends:")
    text += "  - ort-cpu\n  - {name: fake, options: {do: zeros}}\n"
    out = tmp_path / "out"
    done = isorun("run", spec_file(tmp_path, text), "--out", out)
    cells = cells_of(isorun, out)
    (load,) = cells["tiny/1x4/ort-cpu/fp32"]["loads"]
    assert load["result"]["requests_per_s"] > 10
    assert load["result"]["result"]["p99_ms"] <= 50
    assert cells["tiny/1x4/fake/fp32"]["loads"] == []  # its outputs are wrong
    assert "server-50ms: ort-cpu fp32 answers" in " ".join(done.stdout.split())
    (place,) = out.glob("cells/tiny/1x4/ort-cpu/fp32/*/load-*")
    assert len(list(place.glob("loadgen-*/mlperf_log_summary.txt"))) == len(load["result"]["trials"])
    before = (place / "result.json").stat().st_mtime_ns
    isorun("run", spec_file(tmp_path, text), "--out", out, "--resume")
    assert (place / "result.json").stat().st_mtime_ns == before


def test_only_some_cells_are_measured(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    out, spec = tmp_path / "out", slow_spec(tmp_path, 2)
    assert isorun("run", spec, "--out", out, "--only", "*/c1/*").returncode == 0
    assert [cell["status"] for cell in cells_of(isorun, out).values()] == ["pending", "ok"]
    none = isorun("run", spec, "--out", out, "--resume", "--only", "openvino", refused=True)
    assert (none.returncode, "matches no cell" in none.stderr) == (2, True)


def test_check_finds_what_was_changed(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert isorun("run", slow_spec(tmp_path, 1), "--out", out).returncode == 0

    def problems() -> list[str]:
        done = isorun("check", out)
        assert done.returncode == 1
        return [line for line in done.stderr.splitlines() if "undisturbed round" not in line]

    assert problems() == []
    changes: dict[str, Callable[[Any], Any]] = {
        "run.json": lambda run: run["sessions"][0]["environment"]["packages"].update(isorun="9"),
        "models/*/result.json": lambda model: model["result"].update(fingerprint="0"),
        "references/*/*/*/result.json": lambda reference: reference.update(wall_s=9.0),
        "cells/*/*/*/*/*/trial/result.json": lambda trial: trial.update(wall_s=9.0),
        "cells/*/*/*/*/*/round-1/result.json": lambda measured: measured["result"].update(load_ms=9.0),
        "cells/*/*/*/*/*/round-1/job.json": lambda job: job["job"]["cell"].update(seconds=9.0),
    }
    for pattern, change in changes.items():
        (path,) = out.glob(pattern)
        written = path.read_text(encoding="utf-8")
        content = json.loads(written)
        change(content)
        path.write_text(json.dumps(content))
        (line,) = problems()
        assert f"{path.relative_to(out)}: was changed" in line
        if content.pop("seal", None):
            path.write_text(json.dumps(content))
            assert problems() == [line]
        path.write_text(written)
    (reference,) = out.glob("references/*/*/*/outputs.npz")
    outputs = reference.read_bytes()
    reference.write_bytes(outputs[:50])
    assert "outputs.npz: was changed" in problems()[0]
    reference.write_bytes(outputs)
    (place,) = out.glob("cells/*/*/*/*/*/round-1")
    with np.load(place / "samples.npz") as samples:
        arrays = dict(samples)
    np.savez(place / "samples.npz", **{**arrays, "latency/ns": arrays["latency/ns"] // 2})
    result = json.loads((place / "result.json").read_text(encoding="utf-8"))
    result["result"]["sampled"]["feeds-0"] += 2
    result["result"]["repetition"] = {"repeated_ms": 1.0, "varied_ms": 2.0}
    result["machine"]["cpu"]["model"] = result["key"] = "another"
    for part in (result["result"]["latency_ms"],):
        part["mean"] *= 1.5
    (place / "result.json").write_text(json.dumps(result))
    text = "\n".join(problems())
    for problem in (
        "samples.npz: was changed",
        "machine that no session",
        "with settings that differ",
        "the latency does not follow",
        "result.json: was changed",
        "TEST01",
    ):
        assert problem in text, text


@pytest.mark.long
def test_check_finds_cached_answers(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for rounds, expected in ((2, False), (3, True)):
        spec = SLOW.replace("rounds: 1", f"rounds: {rounds}").replace("repeats: 0", "repeats: 3")
        cell = "  - {name: fake, options: {do: cache, seconds: 0.02}}\n"
        assert isorun("run", spec_file(tmp_path, spec + cell), "--out", out, "--resume").returncode == 0
        assert ("(TEST04)" in isorun("check", out).stderr) is expected
