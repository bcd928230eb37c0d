"""The documentation site: every public name is in its reference, and it builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import isorun
import isorun.compat
import isorun.parity
import isorun.plugin
import isorun.plugin.fused
import isorun.quality

ROOT = Path(__file__).parents[1]
MODULES = [isorun, isorun.compat, isorun.parity, isorun.plugin, isorun.plugin.fused, isorun.quality]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_reference_has_every_public_name(module: object) -> None:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")]
    referenced = {name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}
    assert {f"{module.__name__}.{name}" for name in module.__all__} - referenced == set()


@pytest.mark.long
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    session = (tmp_path / "site" / "api" / "session" / "index.html").read_text(encoding="utf-8")
    assert 'id="isorun.Session.run"' in session
    assert ":class:" not in session
    assert (tmp_path / "site" / "project" / "plugins" / "isorun-tract" / "index.html").is_file()
