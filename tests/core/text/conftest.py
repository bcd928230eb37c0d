"""Sentence models, and what sentence-transformers answers for them."""

import json
from pathlib import Path

import numpy as np
import pytest

import sentence_models
from archives import FOLDER, unpack

GOLDEN = FOLDER / "sentences.npz"


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny checkpoints with heads, each with what transformers' pipeline answers: ``make_tasks.py``."""
    return unpack("tasks", tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session")
def retrieval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models of sentence-transformers, each with what it answers: ``make_retrieval.py``."""
    return unpack("retrieval", tmp_path_factory.mktemp("retrieval"))


@pytest.fixture(scope="session")
def retrieved(retrieval: Path) -> list[str]:
    """The texts of the answers."""
    texts: list[str] = json.loads((retrieval / "texts.json").read_text(encoding="utf-8"))
    return texts


@pytest.fixture(scope="session")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as answers:
        return dict(answers)


@pytest.fixture(scope="session")
def variant(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 with another configuration."""
    folder = tmp_path_factory.mktemp("sentences") / "variant"
    return sentence_models.write_variant(minilm, folder)
