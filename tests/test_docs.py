"""The pages in docs/ and the README, tried as written: every Python block of a page runs, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from isorun.graph import encoder, files

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / "session.md", ROOT / "README.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


class _Random:
    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(len(name)).standard_normal(shape, dtype=np.float32) / 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = encoder.EncoderConfig(
        vocab_size=30522, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    model = encoder.encoder(config, _Random(), "bert")
    files.write(model, tmp_path / "bert.onnx", beside_above=files.SINGLE_FILE_LIMIT)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text())
    assert blocks, f"{page.name} has no Python block"
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, block {number + 1}", "exec"), namespace)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").glob("*.md")) + [ROOT / "README.md"], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
