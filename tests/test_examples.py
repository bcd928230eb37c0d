"""The examples, run as their first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isorun.system.cache import Cache

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: object, **variables: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_onnxruntime_application(bert: Path) -> None:
    assert "last_hidden_state (2, 8, " in run("onnxruntime_application.py", bert)


@pytest.mark.long
def test_semantic_search(minilm: Path, minilm_cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Bread is baked from flour.\n\nTrains leave at noon.")
    (tmp_path / "b.txt").write_text("The moon is far away.")
    found = run("semantic_search.py", tmp_path, "When does it depart?", ISORUN_CACHE_DIR=str(minilm_cache.root))
    assert "Trains leave at noon" in found.splitlines()[0]
