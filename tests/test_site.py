"""The documentation site: every public name is in its reference, and it builds."""

import ast
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
CORE = Path(isorun.__file__).parent
MODULES = [isorun, isorun.compat, isorun.parity, isorun.plugin, isorun.plugin.fused, isorun.quality]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_reference_has_every_public_name(module: object) -> None:
    assert {f"{module.__name__}.{name}" for name in module.__all__} - referenced() == set()


@pytest.mark.parametrize(
    "path", ["integrations/chroma.py", "integrations/langchain.py", "integrations/sentence_transformers.py", "ray.py"]
)
def test_reference_has_every_adapter(path: str) -> None:
    names = set()
    for node in ast.parse((CORE / path).read_text(encoding="utf-8")).body:  # their libraries are not installed
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    module = ".".join(("isorun", *Path(path).with_suffix("").parts))
    public = {f"{module}.{name}" for name in names if not name.startswith("_")}
    assert public
    assert public - referenced() == set()


def referenced() -> set[str]:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")]
    return {name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}


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
