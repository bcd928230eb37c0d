import json
from pathlib import Path

import pytest

from isorun.errors import SpecError
from isorun_matrix.execution.bisection.record import Record


@pytest.mark.parametrize("place", ["file", "file/x", "link", "run", "run/x", "run/x/y"])
def test_rejects_files_and_folders_of_runs(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(SpecError, match="--out"):
        Record(tmp_path / place, {}, resume=False)


def test_rejects_a_verdict_that_is_not_one(tmp_path: Path) -> None:
    step = {"release": "1.1", "verdict": "good", "evidence": ""}
    content = {"request": {}, "releases": ["1.0", "1.1"], "steps": [step]}
    (tmp_path / "bisect.json").write_text(json.dumps(content))
    assert set(Record(tmp_path, {}, resume=True).steps) == {"1.1"}
    (tmp_path / "bisect.json").write_text(json.dumps({**content, "steps": [{**step, "verdict": "fine"}]}))
    with pytest.raises(SpecError, match=r"steps\.0\.verdict"):
        Record(tmp_path, {}, resume=True)
