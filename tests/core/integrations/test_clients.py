"""The adapters and the Embedder against the real libraries, in an environment of their own."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

import programs
import sentence_models
from isorun.compilation import corpus

ROOT = Path(__file__).parents[3]
CLIENTS = ("torch==2.13.0", "sentence-transformers==6.2.0", "langchain-core", "chromadb", "onnxruntime")
PYTHON = "ISORUN_CLIENTS_PYTHON"
"""A Python that has the clients and isorun's dependencies; without it, an environment is made, which takes minutes."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return programs.python_with(PYTHON, tmp_path_factory.mktemp("clients"), *CLIENTS, f"{ROOT}[graph]")


@pytest.mark.long
def test_clients_get_the_answers_of_sentence_transformers(python: str, minilm: Path, tmp_path: Path) -> None:
    variant = sentence_models.write_variant(minilm, tmp_path / "variant")
    folder = tmp_path / "minilm"
    for path in minilm.iterdir():
        target = folder / re.sub(r"^(\d+_\w+)\.", r"\1/", path.name)  # the cache has no sub-folders
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    texts = tmp_path / "texts.json"
    own = [text for kind in corpus.texts(held_out=False).values() for text in kind]
    texts.write_text(json.dumps([*sentence_models.TEXTS, *own]))
    script = Path(__file__).with_name("clients.py")
    roots = os.pathsep.join(str(ROOT / root) for root in ("core", "backends"))
    printed = programs.output(python, script, folder, variant, texts, timeout=900, PYTHONPATH=roots)
    print(printed, file=sys.stderr)
