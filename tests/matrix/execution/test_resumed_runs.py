"""Runs that are resumed or repeated with another spec, model or machine: results are kept, and never mix."""

import json
import os
from pathlib import Path

import pytest

from isorun_matrix.execution import runner
from isorun_matrix.execution.plan import Choice
from isorun_matrix.execution.progress import Lines
from isorun_matrix.measurement import machine
from isorun_matrix.report import summary
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.spec.reader import load
from matrix_runs import SLOW, Isorun, cells_of, slow_spec, spec_file


@pytest.mark.long
def test_additions_to_a_spec_keep_results(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert isorun("run", slow_spec(tmp_path, 2), "--out", out).returncode == 0
    kept = {path: path.stat().st_mtime_ns for path in out.rglob("result.json") if "models" not in path.parts}
    assert len(kept) == 5
    more = SLOW + "  - ort-cpu\n"
    more += "".join(f"  - {{name: fake, label: c{index}, options: {{seconds: 0.02}}}}\n" for index in (1, 0))
    done = isorun("run", spec_file(tmp_path, more), "--out", out, "--resume")
    assert "2 of 3 cells are measured and kept" in done.stderr, done.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert "measured again" not in done.stderr


def test_progress_counts_no_reference_that_is_kept(tiny: Path, tmp_path: Path) -> None:
    for rounds in (1, 2):
        text = SLOW.replace("rounds: 1", f"rounds: {rounds}").replace("{backend: fake}", "{backend: reference}")
        source = spec_file(tmp_path, text + "  - ort-cpu\n")
        progress = Lines()
        runner.run(load(source), source, RunFolder(tmp_path / "out"), progress, Choice(resume=rounds == 2))
        assert progress._worked == pytest.approx(progress._work)


@pytest.mark.long
@pytest.mark.parametrize("rounds", [3, 4])
def test_added_cells_share_rounds_with_the_control_and_the_fastest(
    isorun: Isorun, tiny: Path, tmp_path: Path, rounds: int
) -> None:
    spec = SLOW.replace("rounds: 1", "rounds: 3").replace("control: false", "control: true")
    spec += "".join(
        f"  - {{name: fake, label: {label}, options: {{seconds: {seconds}}}}}\n"
        for label, seconds in (("first", 0.01), ("slow", 0.02), ("quick", 0.003))
    )
    out = tmp_path / "out"
    assert isorun("run", spec_file(tmp_path, spec), "--out", out).returncode == 0
    more = spec.replace("rounds: 3", f"rounds: {rounds}")
    more += "  - {name: fake, label: new, options: {seconds: 0.001}}\n"
    done = isorun("run", spec_file(tmp_path, more), "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    orders = {
        order["number"]: set(order["order"])
        for path in out.rglob("round-*/result.json")
        if (order := json.loads(path.read_text(encoding="utf-8"))["round"])
    }
    old = {f"tiny/1x4/{label}/fp32" for label in ("first", "slow", "quick", "first~control")}
    assert [orders[number] for number in (1, 2, 3)] == [old] * 3
    beside = {f"tiny/1x4/{label}/fp32" for label in ("first", "quick", "first~control", "new")}
    if rounds == 4:  # which the others lack, too
        assert orders.pop(4) == old | {"tiny/1x4/new/fp32"}
    assert [orders[number] for number in sorted(orders)[3:]] == [beside] * 3
    (group,) = summary.groups(RunFolder(out).run().cells)
    assert [group.verdict(cell) for cell in group.cells] == ["slower", "slower", "slower", "fastest"]


@pytest.mark.long
def test_measured_cells_are_kept_if_their_model_is_lost(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    out, spec, model = tmp_path / "out", slow_spec(tmp_path, 1), tiny.read_bytes()
    assert isorun("run", spec, "--out", out).returncode == 0
    kept = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/*/*/*/*/*/*")}
    tiny.write_bytes(b"no model")
    done = isorun("run", slow_spec(tmp_path, 2), "--out", out, "--resume")
    assert done.returncode == 1
    assert "2 cells cannot be measured now: model 'tiny' could not be prepared" in done.stderr
    measured, new = cells_of(isorun, out).values()
    assert (measured["status"], new["status"]) == ("ok", "skipped")
    assert "model 'tiny' could not be prepared" in measured["kept"]
    assert "c0 fp32: kept from an earlier session; model 'tiny'" in isorun("report", out, "--format", "md").stdout
    again = isorun("run", spec_file(tmp_path, SLOW + "  - {name: fake, label: c0}\n"), "--out", out, "--resume")
    assert again.returncode == 1  # its options are others now, so that what was measured is not what is requested
    assert [cell["status"] for cell in cells_of(isorun, out).values()] == ["skipped"]
    tiny.write_bytes(model)
    assert isorun("run", slow_spec(tmp_path, 2), "--out", out, "--resume").returncode == 0
    assert [(cell["status"], cell["kept"]) for cell in cells_of(isorun, out).values()] == [("ok", None)] * 2
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.long
def test_a_folder_may_have_a_name_that_is_not_utf8(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    tiny.rename(folder / tiny.name)
    spec, out = spec_file(folder, SLOW + "  - fake\n"), folder / "out"
    assert isorun("run", spec, "--out", out).returncode == 0
    more = spec_file(folder, SLOW + "  - fake\n  - {name: fake, label: new}\n")
    done = isorun("run", more, "--out", out, "--resume")
    assert (done.returncode, "1 of 2 cells" in done.stderr) == (0, True)
    assert isorun("report", out, "--format", "html").returncode == 0


@pytest.mark.long
def test_results_of_another_machine_never_mix(
    isorun: Isorun, environment: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    out, spec = tmp_path / "out", slow_spec(tmp_path, 1)
    for name in machine.collect([], {}).variables:
        del environment[name]
    assert isorun("run", spec, "--out", out).returncode == 0
    created = json.loads((out / "run.json").read_text(encoding="utf-8"))["created"]
    kept = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/*/*/*/*/*/*")}
    environment["OMP_NUM_THREADS"] = "1"
    done = isorun("run", spec, "--out", out, "--resume")
    assert "1 of 1 cells were measured with another spec, model, version or machine" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    keys = [path.name for path in (out / "cells/tiny/1x4/c0/fp32").iterdir()]
    assert len(keys) == 2
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record["created"] == created
    assert [session["environment"]["variables"] for session in record["sessions"]] == [{}, {"OMP_NUM_THREADS": "1"}]
    (cell,) = cells_of(isorun, out).values()
    assert [round_result["number"] for round_result in cell["rounds"]] == [2]


@pytest.mark.long
def test_a_run_is_repeated_from_its_record(isorun: Isorun, tiny: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    assert isorun("run", slow_spec(tmp_path, 1), "--out", out).returncode == 0
    moved = tmp_path / "moved.onnx"
    tiny.rename(moved)
    missing = isorun("run", out / "run.json", "--out", again)
    assert missing.returncode == 2
    assert "--model NAME=PATH" in missing.stderr
    done = isorun("run", out / "run.json", "--out", again, "--model", f"tiny={moved}")
    assert done.returncode == 0, done.stderr
    assert cells_of(isorun, again).keys() == cells_of(isorun, out).keys()
    changed = tmp_path / "other.onnx"
    changed.write_bytes(moved.read_bytes().replace(b"last_hidden_state", b"next_hidden_state"))
    done = isorun("run", out / "run.json", "--out", tmp_path / "third", "--model", f"tiny={changed}")
    assert done.returncode == 1
    assert "is not the one of the original run" in done.stderr
