from __future__ import annotations

import json
from pathlib import Path

import pytest

from isorun.errors import SpecError
from isorun_matrix.results import RunFolder

PLANNED = {"id": "m/1x8/b/fp32", "model": "m", "status": "pending", "parity": None}
RUN = {"environment": {"cpu": {}}, "spec": {}, "cells": [{"key": "k", **PLANNED}]}


def test_a_document_holds_results_and_what_is_pending(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_run(RUN)
    assert folder.document() == {"schema": 1, "environment": {"cpu": {}}, "cells": [PLANNED]}
    folder.start("cells", "m/1x8/b/fp32")
    folder.write("cells", "m/1x8/b/fp32", "k", {**PLANNED, "status": "ok"})
    assert folder.document()["cells"] == [{**PLANNED, "status": "ok"}]


def test_a_result_of_another_key_or_schema_does_not_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    place = folder.start("cells", "c")
    folder.write("cells", "c", "old", {"status": "ok"})
    assert folder.result("cells", "c", "old") is not None
    assert folder.result("cells", "c", "new") is None
    assert folder.result("cells", "c", None) is None
    assert folder.result("cells", "other", "old") is None
    for content in (json.dumps({"schema": 0, "key": "old"}), "{", "", "null", "[]"):
        (place / "result.json").write_text(content)
        assert folder.result("cells", "c", "old") is None


def test_starting_a_job_removes_what_an_earlier_try_left(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (folder.start("cells", "a/b") / "outcome.json").write_text("{}")
    assert list(folder.start("cells", "a/b").iterdir()) == []


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no run of a matrix"),
        ("{", "is no JSON"),
        ("[]", "holds no run; it was changed"),
        ('{"schema": 2}', "is of schema 2; this isorun reads schema 1"),
    ],
)
def test_folders_that_hold_no_run(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(SpecError, match=message):
        RunFolder(tmp_path).document()


def test_what_is_not_a_number_is_never_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start("cells", "c")
    with pytest.raises(ValueError, match="JSON compliant"):
        folder.write("cells", "c", "k", {"p50": float("nan")})
    assert list((tmp_path / "cells" / "c").iterdir()) == []
