"""The adapters and the Embedder against the real libraries, in an environment of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import sentence_models
from isorun.compilation import corpus

ROOT = Path(__file__).parents[3]
CLIENTS = ("torch==2.13.0", "sentence-transformers==6.2.0", "langchain-core", "chromadb", "onnxruntime")
PYTHON = "ISORUN_CLIENTS_PYTHON"
"""A Python that has the clients and isorun's dependencies; without it, an environment is made, which takes minutes."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    if PYTHON in os.environ:
        return os.environ[PYTHON]
    folder = tmp_path_factory.mktemp("clients")
    venv.create(folder, with_pip=True)
    made = str(folder / "bin" / "python")
    subprocess.run([made, "-m", "pip", "install", "--quiet", *CLIENTS, f"{ROOT}[graph]"], check=True)
    return made


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
    ran = subprocess.run(
        [python, str(script), str(folder), str(variant), str(texts)],
        env={**os.environ, "PYTHONPATH": roots},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    print(ran.stdout, file=sys.stderr)
