from __future__ import annotations

from pathlib import Path

import pytest

from isorun.errors import SpecError
from isorun_matrix.execution.bisection.record import Record


@pytest.mark.parametrize("place", ["file", "file/x", "run", "run/x", "run/x/y"])
def test_rejects_files_and_folders_of_runs(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(SpecError, match="--out"):
        Record(tmp_path / place, {}, resume=False)
