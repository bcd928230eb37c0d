import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isorun.errors import SpecError
from isorun_matrix.measurement import feeds
from isorun_matrix.measurement.statistics import latencies
from isorun_matrix.results import audit
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.records import CellResult, LoadResult, ModelResult, RecordedQuality, RoundResult, TrialResult
from matrix_results import ENVIRONMENT, SPEC, cell, measurement, record

NAME = "m/8x128/b/fp32"
PENDING = cell("b", "pending")
RUN: dict[str, Any] = json.loads(json.dumps({"schema": 2, **record(PENDING).model_dump(mode="json")}))
COMMON: dict[str, Any] = {"request": "r", "machine": {}, "started": "2026-11-21T00:00"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "out")
    folder.path.mkdir()
    folder.write_run(record(PENDING))
    return folder


def write(folder: RunFolder, number: int = 1, key: str = "k", p50: float = 1.0, **more: Any) -> Path:
    """A round of the one cell, with its samples."""
    work = folder.start()
    feeds.save(work / "samples.npz", {"latency": {"ns": np.full(4, p50 * 1e6).astype(np.int64)}})
    content = {**COMMON, "key": key, "status": "ok", "seed": 5, "result": measurement(p50)}
    content["round"] = {"number": number, "position": 0, "order": [NAME]}
    place = folder.round_folder(NAME, key, number)
    folder.write(work, place, RoundResult.from_plain(content | more))
    return place


def write_trial(folder: RunFolder, status: str = "ok", key: str = "k", verdict: str = "pass", **more: Any) -> None:
    work = folder.start()
    parity = {**measurement(1.0)["parity"], "verdict": verdict, "summary": "y is off"}
    content = {**COMMON, "key": key, "status": status, "reason": "why", "result": {"parity": parity, **more}}
    content |= {} if status == "ok" else {"result": None}
    folder.write(work, folder.trial_folder(NAME, key), TrialResult.from_plain(content))


def only_cell(folder: RunFolder) -> CellResult:
    (only,) = folder.run().cells
    return only


def test_a_cell_has_the_figures_of_its_rounds(folder: RunFolder) -> None:
    assert only_cell(folder) == PENDING
    pending = folder.run().as_document()["cells"][0]
    write_trial(folder)
    for number, p50 in ((2, 5.0), (1, 4.0), (3, 9.0)):
        write(folder, number, p50=p50)
    complete = only_cell(folder)
    assert complete.status == "ok"
    medians = [(round_result.number, round_result.p50) for round_result in complete.result.rounds]
    assert medians == [(1, 4.0), (2, 5.0), (3, 9.0)]
    assert (complete.result.latency_ms.p50, complete.result.latency_ms.samples) == (5.0, 12)
    measured = folder.run().as_document()["cells"][0]
    assert measured.keys() == pending.keys()
    assert measured["parity"]["tolerance"]["rms"] == 2e-5


def test_times_on_the_device_are_the_medians_of_the_rounds(folder: RunFolder) -> None:
    write_trial(folder)
    for number, p50 in enumerate((1.0, 5.0, 2.0), start=1):
        device = asdict(latencies.latency(np.full(20, int(p50 * 1e6))))
        write(folder, number, result=measurement(p50, device_ms=device))
    device = only_cell(folder).result.device_ms
    assert (device.samples, device.min, device.p50, device.p90, device.max) == (60, 1.0, 2.0, 2.0, 5.0)
    assert device.p99 is None


def test_a_round_is_identified_by_its_cells(folder: RunFolder) -> None:
    write_trial(folder)
    orders = [[NAME, "other"], ["other", NAME], [NAME]]
    for number, order in enumerate(orders, start=1):
        write(folder, number, round={"number": number, "position": 0, "order": order})
    first, same, alone = (taken.together for taken in only_cell(folder).result.rounds)
    assert first == same != alone


def test_a_copy_of_a_round_does_not_count(folder: RunFolder) -> None:
    place = write(folder)
    shutil.copytree(place, place.with_name(f"{place.name} (copy)"))
    assert [result.round.number for result in folder.rounds(NAME, "k")] == [1]
    assert folder.last_round([NAME]) == 1


def test_disturbed_rounds_are_left_out_unless_all_are(folder: RunFolder) -> None:
    write(folder, 1, p50=9.0, result=measurement(9.0, waited=0.3))
    write(folder, 2, p50=9.0, result=measurement(9.0, stolen=0.3))
    result = only_cell(folder).result
    assert (result.latency_ms.p50, result.disturbed) == (9.0, True)
    assert [round_result.used for round_result in result.rounds] == [True] * 2
    write(folder, 3, p50=4.0)
    result = only_cell(folder).result
    assert (result.latency_ms.p50, result.disturbed) == (4.0, False)
    assert [round_result.used for round_result in result.rounds] == [False, False, True]


def test_wrong_outputs_of_any_process_count(folder: RunFolder) -> None:
    write_trial(folder, verdict="fail")
    write(folder)
    assert (only_cell(folder).status, only_cell(folder).reason) == ("parity-failed", "y is off")


@pytest.mark.parametrize(("minimum", "status"), [(None, "ok"), (0.9, "ok"), (0.95, "quality-failed")])
def test_the_low_end_of_what_a_search_keeps_must_reach_the_minimum(
    folder: RunFolder, minimum: float | None, status: str
) -> None:
    recorded = record(PENDING)
    quality = None if minimum is None else RecordedQuality(minimum=minimum)
    folder.write_run(recorded.model_copy(update={"spec": recorded.spec.model_copy(update={"quality": quality})}))
    interval = {"value": 0.96, "low": 0.94, "high": 0.98}
    kept = dict.fromkeys(("recall", "first", "tau"), interval) | {"k": 10, "queries": 300}
    write_trial(folder, quality=kept)
    write(folder)
    searched = only_cell(folder)
    assert searched.status == status
    assert searched.result.quality.recall.low == 0.94
    assert (searched.reason is None) == (status == "ok")


def test_results_of_another_key_stay_and_do_not_count(folder: RunFolder) -> None:
    place = write(folder, 1, "another")
    assert only_cell(folder).status == "pending"
    assert folder.is_measured(NAME)
    assert folder.last_round([NAME]) == 1
    assert folder.key_of(NAME, "r") == "another"
    assert folder.key_of(NAME, "other request") is None
    write(folder, 2)
    assert only_cell(folder).status == "pending"  # its outputs were not compared
    write_trial(folder)
    assert only_cell(folder).status == "ok"
    assert (place / "result.json").is_file()


@pytest.mark.parametrize("status", ["error", "crashed", "timeout", "unavailable"])
def test_a_failure_never_hides_a_complete_measurement(folder: RunFolder, status: str) -> None:
    write_trial(folder, status)
    assert (only_cell(folder).status, only_cell(folder).reason) == (status, "why")
    write_trial(folder)
    for number in range(1, 6):
        assert only_cell(folder).status == "pending" if number == 1 else "ok"
        write(folder, number)
    work = folder.start()
    content = {**COMMON, "key": "k", "status": status, "seed": 5, "reason": "why"}
    content["round"] = {"number": 6, "position": 0, "order": [NAME]}
    folder.write(work, folder.round_folder(NAME, "k", 6), RoundResult.from_plain(content))
    write_trial(folder, status)
    measured = only_cell(folder)
    assert measured.status == "ok"
    assert len(measured.result.rounds) == 5


def test_a_cell_that_cannot_be_measured_now_keeps_its_rounds(folder: RunFolder) -> None:
    folder.write_run(record(PENDING, failure="no network"))
    assert (only_cell(folder).status, only_cell(folder).reason) == ("skipped", "no network")
    write_trial(folder)
    write(folder)
    assert (only_cell(folder).status, only_cell(folder).kept) == ("ok", "no network")


def test_the_first_job_removes_what_an_earlier_run_left(folder: RunFolder) -> None:
    left = folder.start()
    (left / "job.json").write_text('{"time_limit": 1}')
    (folder.start() / ".job.json.1-2").write_text("{")  # killed while it wrote the record
    again = RunFolder(folder.path)
    first, second = again.start(), again.start()
    assert first != second
    assert {*first.parent.iterdir()} == {first, second}
    assert not list(first.iterdir())


def test_rejects_other_files_where_jobs_work(folder: RunFolder) -> None:
    (folder.start() / "model.onnx").write_text("weights")
    with pytest.raises(SpecError, match="holds files"):
        RunFolder(folder.path).start()
    assert len(list(folder.path.glob(".work/*/model.onnx"))) == 1


def test_a_folder_is_locked(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "out"), RunFolder(tmp_path / "out")
    with first.writing(resume=False):
        with pytest.raises(SpecError, match="Another command"), second.writing(resume=True):
            pass
        first.write_run(record(PENDING))
    with pytest.raises(SpecError, match="--resume"), second.writing(resume=False):
        pass
    with second.writing(resume=True):
        pass


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("run", [None, "{}", '{"schema": 1}', '{"schema": 1, "cells": []}'])
def test_rejects_a_folder_with_other_files(tmp_path: Path, resume: bool, run: str | None) -> None:
    (tmp_path / "models" / "bert").mkdir(parents=True)
    (tmp_path / "models" / "bert" / "model.onnx").write_text("weights")
    if run is not None:
        (tmp_path / "run.json").write_text(run)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SpecError, match="--out"), RunFolder(tmp_path).writing(resume=resume):
        pass
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("place", "problem"), [("file", "is a file"), ("file/x", "is a file"), ("link/x", "inside"), ("a/b", "inside")]
)
def test_rejects_a_file_and_a_new_folder_inside_a_run_or_below_a_file(
    folder: RunFolder, place: str, problem: str
) -> None:
    (folder.path.parent / "file").write_text("")
    (folder.path.parent / "link").symlink_to(folder.path)
    path = (folder.path if place == "a/b" else folder.path.parent) / place
    with pytest.raises(SpecError, match=problem), RunFolder(path).writing(resume=False):
        pass
    assert not path.is_dir()


def test_a_run_inside_another_can_be_continued(folder: RunFolder) -> None:
    inner = RunFolder(folder.path / "a")
    inner.path.mkdir()
    inner.write_run(record(PENDING))
    with inner.writing(resume=True):
        pass
    assert inner.record().cells


def test_a_run_that_stopped_before_its_first_file_can_be_restarted(tmp_path: Path) -> None:
    for name in (".lock", ".run.json.1-2"):
        (tmp_path / name).write_text("")
    folder = RunFolder(tmp_path)
    with folder.writing(resume=False):
        work = folder.start()
    assert work.is_dir()


def test_rejects_other_files_in_the_folder_of_a_job(folder: RunFolder) -> None:
    model = folder.path / "models" / "m" / "model.onnx"
    model.parent.mkdir(parents=True)
    model.write_text("weights")
    (model.parent / "job.json").write_text('{"from": "another program"}')
    with pytest.raises(SpecError, match="models/m holds files"):
        folder.require_own(folder.model("m"))
    work = folder.start()
    with pytest.raises(SpecError, match="models/m holds files"):
        folder.write(work, folder.model("m"), ModelResult(status="error", key="k"))
    assert model.read_text(encoding="utf-8") == "weights"


@pytest.mark.parametrize("link", ["cells", "cells/m", f"cells/{NAME}", ".work"])
def test_rejects_symbolic_links_below_the_folder(folder: RunFolder, tmp_path: Path, link: str) -> None:
    target = RunFolder(tmp_path / "other")
    target.path.mkdir()
    write(target)
    (target.start() / "job.json").write_text('{"time_limit": 1}')
    before = sorted(target.path.rglob("*"))
    (folder.path / link).parent.mkdir(parents=True, exist_ok=True)
    (folder.path / link).symlink_to(target.path / link)
    with pytest.raises(SpecError, match="is a symbolic link"):
        write(folder)
    assert sorted(target.path.rglob("*")) == before


@pytest.mark.parametrize("name", ["out", ".lock"])
def test_rejects_a_symbolic_link_as_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "target").mkdir()
    link = tmp_path / "out"
    if name == "out":
        link.symlink_to(tmp_path / "target")
    else:
        link.mkdir()
        (link / name).symlink_to(tmp_path / "target" / "file")
    with pytest.raises(SpecError, match="is a symbolic link"), RunFolder(link).writing(resume=False):
        pass
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not the folder of a run"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "not valid JSON"),
        ("[]", "expected an object"),
        ('{"schema": 1}', "schema 1"),
        ({"cells": 3}, "cells"),
        ({"cells": [{**RUN["cells"][0], "label": 7}]}, r"cells\.0\.label"),
        (
            {"sessions": [{**RUN["sessions"][0], "environment": {**ENVIRONMENT, "cpu": "x"}}]},
            r"sessions\.0\.environment\.cpu",
        ),
        ({"cells": RUN["cells"] * 2}, "not unique"),
        ({"cells": []}, "cells"),
        ({"spec": {**SPEC, "shapes": [1]}}, r"spec\.shapes"),
        ({"spec": {**SPEC, "models": {"m": {"shapes": 1}}}}, r"spec\.models\.m\.shapes"),
        ({"spec": {**SPEC, "load": [{"scenario": "offline"}]}}, r"spec\.load\.0"),
        ({"more": float("inf")}, "not valid JSON"),
    ],
)
def test_rejects_a_damaged_run(tmp_path: Path, content: str | dict[str, Any] | None, message: str) -> None:
    if content is not None:
        text = content if isinstance(content, str) else json.dumps({**RUN, **content})
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(SpecError, match=message):
        RunFolder(tmp_path).run()


@pytest.mark.parametrize(
    "damage",
    [
        *("{", "", "null", "[]", '{"schema": 2}', "\ud800", '{"schema": 1, "key": "k"}'),
        *({"status": "fine"}, {"key": 7}, {"result": "fast"}, {"result": None}, {"round": None}, {"seed": []}),
        *({"parity": []}, {"provenance": {}}, {"waited": "long"}, {"latency_ms": {"p50": 1}}),
        *({"latency_ms": {**measurement(1.0)["latency_ms"], "p50": time}} for time in (-1.0, float("nan"))),
        *({"latency_ms": {**measurement(1.0)["latency_ms"], "p50": None, "mean": 0.0}}, {"cpu_ms": -1.0}),
        {"repetition": {"repeated_ms": 1.0, "varied_ms": 0.0}},
    ],
)
def test_a_damaged_result_is_an_error_that_names_its_file(folder: RunFolder, damage: str | dict[str, Any]) -> None:
    path = write(folder) / "result.json"
    if isinstance(damage, dict):
        content = json.loads(path.read_text(encoding="utf-8"))
        figures = content["result"]
        for name, value in damage.items():
            (figures if name in figures else content)[name] = value
        damage = json.dumps(content)
    path.write_bytes(damage.encode(errors="surrogatepass"))
    for read in (folder.run, lambda: folder.rounds(NAME, "k")):
        with pytest.raises(SpecError, match=r"round-1/result\.json") as caught:
            read()
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("content", [None, b"", b"PK", b"x" * 100])
def test_damaged_samples_are_an_error_that_names_their_file(folder: RunFolder, content: bytes | None) -> None:
    path = write(folder) / "samples.npz"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(SpecError, match=r"round-1/samples\.npz is missing or damaged") as caught:
        folder.run()
    assert str(caught.value).count("Remove the folder") == 1


def test_check_does_not_require_a_control_that_a_changed_spec_added(folder: RunFolder) -> None:
    folder.write_run(record(cell("c0"), cell("c0~control")))
    assert [*audit.problems(folder)] == [("m/8x128/c0/fp32", "is pending: not measured")]


def test_check_finds_cells_that_have_no_result_under_load(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "reference_of", lambda *_: None)

    def load_problems() -> list[str]:
        return [problem for _, problem in audit.problems(folder) if problem.startswith("load")]

    planned = record(PENDING)
    scenario = {"name": "offline", "scenario": "offline"}
    folder.write_run(planned.model_copy(update={"spec": planned.spec.model_copy(update={"load": [scenario]})}))
    assert load_problems() == []
    write_trial(folder)
    for number in (1, 2, 3, 4, 5):
        write(folder, number)
    assert load_problems() == ["load offline is not measured"]
    failed = LoadResult.from_plain({"key": "k", "status": "timeout", "reason": "too late", "load": scenario})
    folder.write(folder.start(), folder.load_folder(NAME, "k", scenario), failed)
    assert load_problems() == ["load offline is timeout: too late"]


def test_check_counts_undisturbed_rounds(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "reference_of", lambda *_: None)
    for number, waited, remedy in ((1, 0.0, ""), (2, 0.5, " --remeasure disturbed")):
        write(folder, number, result={**measurement(1.0), "waited": waited})
        problems = [problem for _, problem in audit.problems(folder)]
        assert f"has 1 undisturbed round, expected 5. Use run --resume{remedy}" in problems


def test_text_that_utf8_cannot_encode_is_replaced(folder: RunFolder) -> None:
    write_trial(folder, "error")
    (path,) = folder.cell(NAME).glob("*/trial/result.json")
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "reason": "/folder\udcff"}))
    assert only_cell(folder).reason == "/folder?"


def test_nan_is_never_written() -> None:
    with pytest.raises(ValueError, match="nan"):
        TrialResult.from_plain({**COMMON, "key": "k", "status": "error", "wall_s": float("nan")})
