"""Folders whose files are damaged are refused with isorun's own errors: soon, without much memory, without an abort."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import damage
import damage_run
import sentence_models
from isorun.models import checkpoint

_MODELS = {
    **{"bert": "BertTokenizer", "qwen3": "Qwen2Tokenizer", "embeddinggemma": "XLMRobertaTokenizer"},
    **{"deberta-v3": "RobertaTokenizer", "albert": "TokenizersBackend", "t5": "T5Tokenizer"},
}
_COUNT = 2000


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> list[Path]:
    """Sentence models of several architectures, a reranker, and files that were built from both."""
    root = tmp_path_factory.mktemp("folders")
    made = [sentence_models.write_sentence_model(root / name, name, kind) for name, kind in _MODELS.items()]
    made.append(sentence_models.write_reranker(tokenizer, root / "reranker", 3))
    for original in (made[0], made[-1]):
        made.append(root / f"{original.name}-built")
        made[-1].mkdir()
        checkpoint.build(original, made[-1] / "model.onnx")
    for folder in made:
        assert damage_run.use(folder, root / "cache") is None
    return made


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 50, 10)], ids=str)
def test_damaged_folders_are_refused_with_own_errors(folders: list[Path], tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        original = folders[seed % len(folders)]
        folder = Path(shutil.copytree(original, tmp_path / str(seed) / original.name))
        done, start = damage.damage(folder, seed), time.thread_time()
        try:
            damage_run.use(folder, original.parent / "cache")
        except BaseException as error:
            raise AssertionError(f"{original.name}, {done}: {error!r}") from error
        assert time.thread_time() - start < 20, f"{original.name}, {done}"  # the long test has the limit


@pytest.mark.long
def test_damaged_folders_neither_abort_nor_exhaust_time_or_memory(folders: list[Path], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(damage_run.__file__).parent)}
    command = [sys.executable, damage_run.__file__, *map(str, folders), str(tmp_path), "1000", str(_COUNT)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    attempts: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(attempts) == _COUNT, result.stderr
    usual = sorted(attempt["mib"] for attempt in attempts)[_COUNT // 2]
    wrong = [each for each in attempts if each["status"] or each["cpu"] > 2 or each["mib"] > usual + 500]
    assert wrong == []
