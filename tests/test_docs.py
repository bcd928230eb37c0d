"""The pages in docs/ and the README, tried as written: the Python blocks of a page run in order, in one namespace."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from isorun.cli import plugin

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / "session.md", ROOT / "README.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(bert, tmp_path / "bert.onnx")
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text())
    assert blocks, f"{page.name} has no Python block"
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, block {number + 1}", "exec"), namespace)


def test_a_plugin_is_shown_as_the_command_writes_it(tmp_path: Path) -> None:
    plugin.write("my-engine", tmp_path / "made")
    written = [path.read_text() for path in (tmp_path / "made").rglob("*.*") if path.is_file()]
    page = (ROOT / "docs" / "writing-a-backend.md").read_text()
    blocks: list[str] = re.findall(r"^```(?:python|toml)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shown = [block for block in blocks if "onnx_backend" not in block]
    assert len(shown) == len(blocks) - 1 == 4
    for block in shown:
        assert any(block in text for text in written), block


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
