"""``isorun models``, and the table of heads in docs/models.md."""

from __future__ import annotations

import json
from pathlib import Path

import exports
from isorun.graph.builders.heads import TASKS
from isorun.models import heads

DOCS = Path(__file__).parents[3] / "docs" / "models.md"


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
    """Families with the same heads share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for kind, tasks in heads.families().items():
        rows.setdefault(tuple("yes" if task in tasks else "-" for task in heads.TITLES), []).append(f"`{kind}`")
    table = [
        f"| `model_type` | {' | '.join(heads.TITLES.values())} |",
        "|---" * 5 + "|",
        *(f"| {', '.join(kinds)} | {' | '.join(row)} |" for row, kinds in rows.items()),
    ]
    assert "\n".join(table) in DOCS.read_text()
