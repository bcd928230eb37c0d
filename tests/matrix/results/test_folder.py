from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isorun.errors import SpecError
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.records import CellResult, ModelResult
from matrix_results import ENVIRONMENT, SPEC, cell, record

NAME = "m/8x128/b/fp32"
PENDING = cell("b", "pending")
MEASURED = cell("b", "ok", 1.0)
RUN: dict[str, Any] = json.loads(json.dumps({"schema": 1, **record(PENDING).model_dump(mode="json")}))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "out")
    folder.path.mkdir()
    folder.write_run(record(PENDING))
    return folder


def write(folder: RunFolder, key: str = "k", found: CellResult = MEASURED) -> Path:
    """A result of the one cell, with a file beside it."""
    (folder.start() / "log.txt").write_text(key)
    folder.write(NAME, found.model_copy(update={"key": key}))
    return folder.folder("cells", NAME)


def test_a_run_has_results_and_pending_cells(folder: RunFolder) -> None:
    assert folder.run().cells == [PENDING]
    pending = folder.run().as_document()["cells"][0]
    write(folder)
    assert folder.run().cells == [MEASURED]
    measured = folder.run().as_document()["cells"][0]
    assert measured.keys() == pending.keys()
    assert measured["latency_ms"]["p50"] == 1
    assert measured["parity"]["tolerance"]["rms"] == 2e-5


def test_a_result_with_another_key_is_ignored(folder: RunFolder) -> None:
    write(folder, "old")
    assert folder.result(CellResult, NAME, "old") is not None
    assert folder.result(CellResult, NAME, "new") is None
    assert folder.result(CellResult, NAME, None) is None
    assert folder.result(CellResult, "other", "old") is None


def test_starting_a_job_empties_its_folder(folder: RunFolder) -> None:
    work = folder.start()
    (work / "job.json").write_text('{"time_limit": 1}')
    (work / ".job.json.1-2").write_text("{")
    assert list(folder.start().iterdir()) == []
    (work / ".job.json.1-2").write_text("{")  # killed while it wrote the record
    assert list(folder.start().iterdir()) == []


def test_only_a_measurement_replaces_a_measurement(folder: RunFolder) -> None:
    place = write(folder, "old")
    for status in ("skipped", "error", "crashed", "timeout", "unavailable", "unsupported"):
        folder.start()
        folder.write(NAME, cell("b", status, reason="why"))
        assert [found.status for found in folder.run().cells] == [status]
        assert (place / "log.txt").read_text() == "old"
        assert folder.result(CellResult, NAME, "old") is not None
    write(folder, "k", cell("b", "parity-failed", 1.0))
    assert [found.status for found in folder.run().cells] == ["parity-failed"]
    assert folder.result(CellResult, NAME, "old") is None
    assert sorted(path.name for path in place.iterdir()) == ["log.txt", "result.json"]


def test_a_job_without_a_result_changes_nothing(folder: RunFolder) -> None:
    write(folder)
    folder.start({"time_limit": 1})
    assert folder.run().cells == [MEASURED]


@pytest.mark.parametrize("renamed", [True, False])
def test_an_interrupted_replacement_is_completed(folder: RunFolder, renamed: bool) -> None:
    place = write(folder, "old")
    place.rename(place.with_name(".fp32.old"))
    if renamed:
        write(folder, "new")
    with folder.writing(resume=True):
        pass
    assert [path.name for path in place.parent.iterdir()] == ["fp32"]
    assert folder.result(CellResult, NAME, "new" if renamed else "old") is not None


def test_a_folder_is_locked(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "out"), RunFolder(tmp_path / "out")
    with first.writing(resume=False):
        with pytest.raises(SpecError, match="Another run"), second.writing(resume=True):
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


def test_a_run_that_stopped_before_its_first_file_can_be_restarted(tmp_path: Path) -> None:
    for name in (".lock", ".run.json.1-2"):
        (tmp_path / name).write_text("")
    with RunFolder(tmp_path).writing(resume=False):
        pass


def test_rejects_other_files_in_the_folder_of_a_job(folder: RunFolder) -> None:
    model = folder.path / "models" / "m" / "model.onnx"
    model.parent.mkdir(parents=True)
    model.write_text("weights")
    (model.parent / "job.json").write_text('{"from": "another program"}')
    with pytest.raises(SpecError, match="models/m holds files"):
        folder.require_own("models", "m")
    folder.start()
    with pytest.raises(SpecError, match="models/m holds files"):
        folder.write("m", ModelResult(status="error", key="k"))
    assert model.read_text() == "weights"


@pytest.mark.parametrize("link", ["cells", "cells/m", f"cells/{NAME}", ".work"])
def test_rejects_symbolic_links_below_the_folder(folder: RunFolder, tmp_path: Path, link: str) -> None:
    other = RunFolder(tmp_path / "other")
    other.path.mkdir()
    write(other, "theirs")
    (other.start() / "job.json").write_text('{"time_limit": 1}')
    before = sorted(other.path.rglob("*"))
    (folder.path / link).parent.mkdir(parents=True, exist_ok=True)
    (folder.path / link).symlink_to(other.path / link)
    with pytest.raises(SpecError, match="is a symbolic link"):
        write(folder)
    assert sorted(other.path.rglob("*")) == before


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
        ('{"schema": 2}', "schema 2"),
        ({"cells": 3}, "cells"),
        ({"cells": [{**RUN["cells"][0], "label": 7}]}, r"cells\.0\.label"),
        ({"environment": {**ENVIRONMENT, "cpu": "x"}}, r"environment\.cpu"),
        ({"cells": RUN["cells"] * 2}, "not unique"),
        ({"cells": []}, "cells"),
        ({"spec": {**SPEC, "shapes": [1]}}, r"spec\.shapes"),
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
        *("{", "", "null", "[]", '{"schema": 1}', "\ud800", '{"schema": 0, "key": "k"}'),
        *({"status": "fine"}, {"key": 7}, {"result": "fast"}, {"result": None}, {"label": None}, {"options": []}),
        *({"parity": []}, {"provenance": {}}, {"waited": "long"}, {"latency_ms": {"p50": 1}}),
        {"latency_ms": {**json.loads(MEASURED.model_dump_json())["result"]["latency_ms"], "p50_interval": None}},
    ],
)
def test_a_damaged_result_is_an_error_that_names_its_file(folder: RunFolder, damage: str | dict[str, Any]) -> None:
    path = write(folder) / "result.json"
    if isinstance(damage, dict):
        content = json.loads(path.read_text())
        figures = content["result"]
        for name, value in damage.items():
            (figures if name in figures else content)[name] = value
        damage = json.dumps(content)
    path.write_bytes(damage.encode(errors="surrogatepass"))
    for read in (folder.run, lambda: folder.measured(CellResult, NAME)):
        with pytest.raises(SpecError, match=r"fp32/result\.json") as caught:
            read()
        assert len(str(caught.value)) < 1000


def test_text_that_utf8_cannot_encode_is_replaced(folder: RunFolder) -> None:
    path = write(folder) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "reason": "/folder\udcff"}))
    assert folder.run().cells[0].reason == "/folder?"


def test_nan_is_never_written(folder: RunFolder) -> None:
    content = MEASURED.model_dump(mode="json")
    content["result"]["load_ms"] = float("nan")
    with pytest.raises(ValueError, match="nan"):
        CellResult.from_plain(content)
