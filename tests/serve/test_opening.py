"""What a model is served as, by its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import isorun
from isorun_serve.opening import task_of


def test_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(isorun.InvalidModel, match=r"no config\.json.*--task"):
        task_of(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertForSequenceClassification", "classify"),
        ("BertForMaskedLM", "embed"),
        ("BertModel", "embed"),
        ("BertForTokenClassification", None),
        ("BertForQuestionAnswering", None),
    ],
)
def test_task_of_a_checkpoint(tmp_path: Path, architecture: str, task: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": [architecture]}))
    if task is not None:
        assert task_of(tmp_path) == task
        return
    with pytest.raises(isorun.InvalidModel, match=r"--task NAME=embed"):  # and not served as an embedder in silence
        task_of(tmp_path)
