"""The pages on embeddings and serving, tested as written; the server of the example answers requests."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import isorun
import tiny
from archives import unpack
from isorun.session.session import Session

DOCS = Path(__file__).parents[3] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(bert: Path, minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the models that the pages name."""
    shutil.copy(bert, tmp_path / "bert.onnx")
    (tmp_path / "all-MiniLM-L6-v2").symlink_to(minilm)
    (tmp_path / "lightonai").mkdir()
    (tmp_path / "lightonai/GTE-ModernColBERT-v1").symlink_to(unpack("multi-vector", tmp_path / "models") / "fixed")
    (tmp_path / "BAAI").mkdir()
    (tmp_path / "BAAI/bge-m3").symlink_to(unpack("hybrid", tmp_path / "models") / "model")
    monkeypatch.chdir(tmp_path)
    measured = Session.warmup

    def warmup(session: Session, *on: Any) -> Any:
        return measured(session, *on, measure=False)  # which takes seconds, and has its own test

    monkeypatch.setattr(Session, "warmup", warmup)
    return tmp_path


def run(page: str) -> dict[str, Any]:
    """What the blocks of a page define."""
    namespace: dict[str, Any] = {"feeds": tiny.feeds()}
    for number, block in enumerate(BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))):
        exec(compile(block, f"{page}, block {number + 1}", "exec", dont_inherit=True), namespace)
    return namespace


@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("ignore::isorun.models.tokenizer.TruncationWarning")
def test_the_page_on_embeddings() -> None:
    names = run("embeddings.md")
    vectors, small = names["vectors"], names["small"]
    assert vectors.shape == (1, 128)
    assert [tokens.shape[1] for tokens in names["documents"].tokens] == [16, 16]
    assert (small.shape, small.dtype) == ((1, 384), np.int8)
    np.testing.assert_allclose(np.linalg.norm(vectors), 1, rtol=1e-6)


@pytest.mark.long
@pytest.mark.usefixtures("folder")
def test_the_server_of_the_page_on_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    app = run("serving.md")["app"]
    with TestClient(app) as client:
        vectors = client.post("/embed", json=["A man is eating food.", "A girl is carrying a baby."])
        assert np.array(vectors.json()).shape == (2, 384)
        assert 'isorun_requests_total{model="all-MiniLM-L6-v2"} 2\n' in client.get("/metrics").text

        async def full(*_: object) -> None:
            raise isorun.QueueFull(256)

        monkeypatch.setattr(isorun.Embedder, "aembed", full)
        busy = client.post("/embed", json=["a"])
        assert (busy.status_code, busy.headers["Retry-After"]) == (429, "1")
