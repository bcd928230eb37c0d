"""Every page of the documentation, run from top to bottom in an empty folder and home, with nothing made beforehand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import run_page

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = ("python", "console", "sh")
BLOCKS = {page: list(run_page.blocks(page.read_text(encoding="utf-8"))) for page in PAGES}
RUNNING = [page for page in PAGES if any(block.language in RUN and not block.reason for block in BLOCKS[page])]
ENVIRONMENT = re.compile(r"ISORUN_(?!LOCK_DIR)|XDG_|HF_|COLUMNS$|PYTEST_|PYTHON(?!HASHSEED)")


@pytest.mark.long
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.name)
def test_page_runs_in_an_empty_folder(page: Path, tmp_path: Path) -> None:
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    variables = {name: value for name, value in os.environ.items() if not ENVIRONMENT.match(name)}
    variables |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name in ("benchmarks", "matrix", "plugins", "tests"):  # commands of a clone
        (folder / name).symlink_to(ROOT / name)
    command = [sys.executable, "-W", "error::DeprecationWarning", run_page.__file__, str(page)]
    ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    if page.name == "README.md":
        (printed,) = re.findall(r"(?m)^```text\n(\[.*\])$", page.read_text(encoding="utf-8"))  # of the first example
        assert ran.stdout.count(printed) == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_fenced_and_have_a_language(page: Path) -> None:
    text = run_page.BLOCK.sub("", page.read_text(encoding="utf-8"))
    assert "```" not in text
    assert re.findall(r"(?:^|\n)\n {4}(?! *[-*] ).*", re.sub(r"(?m)^[-*] .*(\n\n? +.*)*", "", text)) == []
    assert [block.line for block in BLOCKS[page] if not block.language] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_yaml_blocks_parse(page: Path) -> None:
    for block in BLOCKS[page]:
        if block.language == "yaml":
            lines = block.code.splitlines()
            assert yaml.safe_load(block.code) or all(line.startswith("#") for line in lines), block.line
