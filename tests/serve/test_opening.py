"""What a model is served as, by its files."""

from __future__ import annotations

from pathlib import Path

import pytest

import isorun
from isorun_serve.opening import task_of


def test_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(isorun.InvalidModel, match=r"no config\.json.*--task"):
        task_of(tmp_path)
