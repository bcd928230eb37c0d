"""``isorun models``, and the table of heads in docs/models.md."""

import json
from pathlib import Path

import pytest

import exports
import head_table
import tiny
from archives import unpack
from isorun.graph import pipeline
from isorun.graph.tasks import TASKS
from isorun.models import checkpoint, heads

LISTED = [(kind, task) for kind, tasks in heads.families().items() for task in sorted(tasks)]
ENDINGS = {task: ending.removeprefix("For") for ending, task in TASKS.items()}
TWINS = {"mt5": ("t5", ""), "new": ("gte", "new.")}
"""The types whose tensors are named as those of a type with fixtures, and the prefix that differs, if any."""


@pytest.mark.parametrize("columns", ["0", "3"])
def test_prints_where_the_terminal_has_no_width(isorun, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert "bert" in isorun("models").out


def test_lists_every_family_with_its_heads(isorun):
    ran = isorun("models")
    assert ran.code == 0
    (line,) = [line for line in ran.out.splitlines() if line.startswith("qwen3 ")]
    assert line.split() == ["qwen3", "yes", "yes", "yes", "-"]
    listed = json.loads(isorun("models", "--json").out)
    assert listed["bert"] == sorted(TASKS.values())
    assert listed["gemma3_text"] == ["sequence-classification"]


def test_every_task_has_a_title():
    assert list(heads.TITLES) == list(TASKS.values())


def test_every_family_of_an_export_with_a_head_is_listed():
    """Exports and checkpoints of the fixtures were compared with transformers."""
    listed = heads.families()
    names = {entry["architecture"] for entry in exports.manifest().values() if entry["head"]}
    assert {"bert", "distilbert", "albert"} <= names & listed.keys()


def test_docs_show_the_table():
    assert head_table.page() == head_table.PAGE.read_text(encoding="utf-8"), "run python tools/head_table.py"


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("kind", "task"), LISTED)
def test_every_listed_head_is_built(kind, task, tmp_path):
    twin, prefix = TWINS.get(kind, (kind, ""))
    folder = unpack("heads", tmp_path, f"{twin}-{ENDINGS[task]}")
    if twin != kind:
        rename(folder, kind, f"{twin}.", prefix)
    assert checkpoint.build(folder, tmp_path / "built.onnx") == []
    graph = pipeline.read(tmp_path / "built.onnx").model.graph
    names = {value.name for value in graph.outputs}
    assert "logits" in names or {"start_logits", "end_logits"} <= names


def rename(folder: Path, kind: str, before: str, after: str) -> None:
    """Make a checkpoint one of another type; ``after``, if any, replaces the prefix of its tensors."""
    weights = tiny.changed(folder, model_type=kind) / "model.safetensors"
    if after:
        assert len(before) == len(after), "the header's length is stored before it"
        weights.write_bytes(weights.read_bytes().replace(f'"{before}'.encode(), f'"{after}'.encode()))
