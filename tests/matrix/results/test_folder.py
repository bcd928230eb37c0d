from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isorun.errors import SpecError
from isorun_matrix.results.folder import RunFolder

NAME = "m/1x8/b/fp32"
CPU = {"model": "a CPU", "architecture": "x86_64", "cores": 2, "usable_cores": 2, "cgroup_quota": None, "flags": []}
ENVIRONMENT = {
    "cpu": {**CPU, "governor": None},
    **{"memory_mib": 2048, "load_average": [0.1], "os": "an OS", "kernel": "6", "python": "CPython 3", "packages": {}},
}
REFERENCE = {"backend": "reference", "precision": "fp64"}
SPEC = {"models": {"m": {}}, "backends": [{"label": "b"}], "shapes": None, "reference": REFERENCE}
PLANNED: dict[str, Any] = {
    "id": NAME,
    **{"model": "m", "shape": "1x8", "backend": "b", "label": "b", "precision": "fp32", "batch": 1, "sequence": 8},
    **{"options": {}, "threads": None, "status": "pending", "kept": None},
    **dict.fromkeys(["reason", "remedy", "log", "warmup_runs", "parity", "latency_ms", "spread_ms", "throughput"]),
    **dict.fromkeys(["load_ms", "first_run_ms", "memory_mib", "provenance"]),
}
RUN: dict[str, Any] = {
    **{"created": "today", "environment": ENVIRONMENT, "spec": SPEC, "cells": [{"key": "k", **PLANNED}]}
}
TIMES = dict.fromkeys(["min", "mean", "std", "p50", "p90", "p95", "p99", "max"], 1.0)
MEASURED: dict[str, Any] = {
    **PLANNED,
    **{"status": "ok", "latency_ms": {"samples": 9, **TIMES, "p50_interval": [1.0, 1.0], "notes": []}},
    **{"spread_ms": dict.fromkeys(["p5", "p25", "p50", "p75", "p95"], 1.0), "load_ms": 1.0, "first_run_ms": 1.0},
    **{"throughput": dict.fromkeys(["requests_per_s", "rows_per_s", "tokens_per_s"], 1.0), "warmup_runs": 1},
    **{"memory_mib": {"before_load": 1.0, "peak": 1.0}},
    "parity": {
        **{"verdict": "pass", "summary": None, "tolerance": {"max_rel": 0.1, "rms": 0.1, "cosine": 0.9}},
        **dict.fromkeys(["max_abs", "max_rel", "rms", "cosine", "argmax"], 0.0),
    },
    "provenance": {
        **{"device": "a CPU", "threads": 1, "precision": "fp32", "operators": {}, "fused": {}, "dialect": "onnx"},
        **{"cache": "found", "versions": {}, "fingerprint": "f00d"},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "out")
    folder.path.mkdir()
    folder.write_run(RUN)
    return folder


def write(folder: RunFolder, key: str = "k", **result: Any) -> Path:
    """A result of the one cell, with a file beside it."""
    (folder.start() / "log.txt").write_text(key)
    folder.write("cells", NAME, key, {**MEASURED, **result})
    return folder.folder("cells", NAME)


def test_a_document_holds_results_and_what_is_pending(folder: RunFolder) -> None:
    assert folder.document() == {"schema": 1, "environment": ENVIRONMENT, "cells": [PLANNED]}
    write(folder)
    assert folder.document()["cells"] == [MEASURED]


def test_a_result_of_another_key_does_not_count(folder: RunFolder) -> None:
    write(folder, "old")
    assert folder.result("cells", NAME, "old") is not None
    assert folder.result("cells", NAME, "new") is None
    assert folder.result("cells", NAME, None) is None
    assert folder.result("cells", "other", "old") is None


def test_starting_a_job_removes_what_an_earlier_job_left(folder: RunFolder) -> None:
    work = folder.start()
    (work / "job.json").write_text('{"time_limit": 1}')
    (work / ".job.json.1-2").write_text("{")
    assert list(folder.start().iterdir()) == []
    (work / ".job.json.1-2").write_text("{")  # killed while it wrote the record
    assert list(folder.start().iterdir()) == []


def test_a_measured_result_is_replaced_only_by_another(folder: RunFolder) -> None:
    place = write(folder, "old")
    nothing = dict.fromkeys(PLANNED, None) | PLANNED
    for status in ("skipped", "error", "crashed", "timeout", "unavailable", "unsupported"):
        folder.start()
        folder.write("cells", NAME, "k", {**nothing, "status": status, "reason": "why"})
        assert [cell["status"] for cell in folder.document()["cells"]] == [status]
        assert (place / "log.txt").read_text() == "old"
        assert folder.result("cells", NAME, "old") is not None
    write(folder, "k", status="parity-failed")
    assert [cell["status"] for cell in folder.document()["cells"]] == ["parity-failed"]
    assert folder.result("cells", NAME, "old") is None
    assert sorted(path.name for path in place.iterdir()) == ["log.txt", "result.json"]


def test_a_job_that_stops_before_its_result_leaves_the_one_that_is_there(folder: RunFolder) -> None:
    write(folder)
    (folder.start() / "job.json").write_text('{"time_limit": 1}')
    assert folder.document()["cells"] == [MEASURED]


@pytest.mark.parametrize("renamed", [True, False])
def test_a_replacement_that_was_killed_half_way_is_finished(folder: RunFolder, renamed: bool) -> None:
    place = write(folder, "old")
    place.rename(place.with_name(".fp32.old"))
    if renamed:
        write(folder, "new")
    with folder.writing(resume=True):
        pass
    assert [path.name for path in place.parent.iterdir()] == ["fp32"]
    assert folder.result("cells", NAME, "new" if renamed else "old") is not None


def test_a_folder_is_written_to_by_one_run_at_a_time(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path / "out"), RunFolder(tmp_path / "out")
    with first.writing(resume=False):
        with pytest.raises(SpecError, match="Another run is writing to"), second.writing(resume=True):
            pass
        first.write_run(RUN)
    with pytest.raises(SpecError, match="holds a run; go on with it by --resume"), second.writing(resume=False):
        pass
    with second.writing(resume=True):
        pass


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("run", [None, "{}", '{"schema": 1}', '{"schema": 1, "cells": []}'])
def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path, resume: bool, run: str | None) -> None:
    (tmp_path / "models" / "bert").mkdir(parents=True)
    (tmp_path / "models" / "bert" / "model.onnx").write_text("weights")
    if run is not None:
        (tmp_path / "run.json").write_text(run)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SpecError, match="--out"), RunFolder(tmp_path).writing(resume=resume):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_stopped_before_its_first_file_can_be_started_again(tmp_path: Path) -> None:
    for name in (".lock", ".run.json.1-2"):
        (tmp_path / name).write_text("")
    with RunFolder(tmp_path).writing(resume=False):
        pass


def test_files_where_a_job_would_go_are_refused_and_left_alone(folder: RunFolder) -> None:
    model = folder.path / "models" / "m" / "model.onnx"
    model.parent.mkdir(parents=True)
    model.write_text("weights")
    (model.parent / "job.json").write_text('{"from": "another program"}')
    with pytest.raises(SpecError, match="models/m holds files"):
        folder.require_own("models", "m")
    folder.start()
    with pytest.raises(SpecError, match="models/m holds files"):
        folder.write("models", "m", "k", {"status": "ok", "reason": None})
    assert model.read_text() == "weights"


@pytest.mark.parametrize("link", ["cells", "cells/m", f"cells/{NAME}", ".work"])
def test_nothing_is_removed_behind_a_symbolic_link(folder: RunFolder, tmp_path: Path, link: str) -> None:
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
def test_a_run_does_not_write_through_a_symbolic_link(tmp_path: Path, name: str) -> None:
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
        (None, "holds no run of a matrix"),
        ("{", "is no JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "is no JSON"),
        ("[]", "holds no run; it was changed"),
        ('{"schema": 2}', "is of schema 2; this isorun reads schema 1"),
        (json.dumps({"schema": 1, **RUN, "cells": 3}), r"run\.json is damaged: cells"),
        (json.dumps({"schema": 1, **RUN, "cells": [{**RUN["cells"][0], "status": "good"}]}), r"cells\.0\.status"),
        (json.dumps({"schema": 1, **RUN, "environment": {"cpu": "x"}}), r"environment\.cpu"),
        (json.dumps({"schema": 1, **RUN, "cells": RUN["cells"] * 2}), "is there twice"),
        (json.dumps({"schema": 1, **RUN, "cells": []}), "cells"),
        (json.dumps({"schema": 1, **RUN, "spec": {**SPEC, "shapes": [1]}}), r"spec\.shapes"),
        (json.dumps({"schema": 1, **RUN, "more": float("inf")}), "is no JSON"),
    ],
)
def test_folders_that_hold_no_run(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(SpecError, match=message):
        RunFolder(tmp_path).document()


@pytest.mark.parametrize(
    "damage",
    [
        *("{", "", "null", "[]", '{"schema": 1}', "\ud800", '{"schema": 0, "key": "k"}'),
        *({"status": "fine"}, {"key": 7}, {"latency_ms": "fast"}, {"latency_ms": None}, {"parity": []}),
        *({"label": None}, {"options": []}, {"provenance": {}}, {"waited": "long"}, {"load_average": []}),
    ],
)
def test_a_damaged_result_is_an_error_that_names_its_file(folder: RunFolder, damage: str | dict[str, Any]) -> None:
    path = write(folder) / "result.json"
    content = damage if isinstance(damage, str) else json.dumps({**json.loads(path.read_text()), **damage})
    path.write_bytes(content.encode(errors="surrogatepass"))
    for read in (folder.document, lambda: folder.measured("cells", NAME)):
        with pytest.raises(SpecError, match=r"fp32/result\.json") as caught:
            read()
        assert len(str(caught.value)) < 1000


def test_what_is_not_a_number_is_never_written(folder: RunFolder) -> None:
    folder.start()
    with pytest.raises(ValueError, match="JSON compliant"):
        folder.write("cells", "c", "k", {"status": "ok", "p50": float("nan")})
    assert not folder.folder("cells", "c").exists()
