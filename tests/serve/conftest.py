"""Models of each task, opened once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import isorun
import served


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints by name. Read them only."""
    folder = tmp_path_factory.mktemp("served")
    return {
        "embedder": served.write_embedder(folder / "embedder"),
        "reranker": served.write_reranker(folder / "reranker"),
        "classifier": served.write_classifier(folder / "classifier"),
    }


@pytest.fixture(scope="session")
def models(folders: dict[str, Path], bert: Path) -> Iterator[dict[str, Any]]:
    """Open models by name."""
    opened = {**served.open_all(folders), "bert": isorun.Session(bert, "ort-cpu")}
    yield opened
    for model in opened.values():
        model.close()


@pytest.fixture
def client(models: dict[str, Any]) -> Iterator[TestClient]:
    """A client of a server of all models with small limits."""
    with served.client(models, max_texts=8, max_tokens=64, max_characters=500, max_body=10_000) as opened:
        yield opened
