"""Damaged caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from isorun.cli.doctor import entries
from isorun.system.cache import Cache

KEYS = ("a", "b")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "cache")
    for key in KEYS:
        made.get_or_make("lowered", key, lambda folder: {"bytes": (folder / "model.onnx").write_bytes(b"model" * 100)})
    return made


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        ("model.onnx", b"short", "model.onnx"),
        ("model.onnx", None, "model.onnx"),
        ("entry.json", b"{", "JSONDecodeError"),
    ],
)
def test_damaged_entry_is_reported_and_unchanged(cache, file, content, why):
    assert list(entries.findings(cache)) == []
    path = cache.root / "lowered" / "b" / file
    path.unlink() if content is None else path.write_bytes(content)
    before = {each: each.read_bytes() for each in cache.root.rglob("*") if each.is_file()}
    (finding,) = entries.findings(cache)
    assert finding.what.startswith("lowered/b is damaged: ")
    assert why in finding.what
    assert finding.command == "isorun cache --clear"
    assert cache.get("lowered", "b") is None
    assert {each: each.read_bytes() for each in cache.root.rglob("*") if each.is_file()} == before


def test_missing_cache_is_no_finding(tmp_path):
    assert list(entries.findings(Cache(tmp_path / "deep" / "down"))) == []
    assert list(tmp_path.iterdir()) == []


def test_cache_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    (finding,) = entries.findings(Cache(tmp_path / "file" / "cache"))
    assert str(tmp_path / "file") in finding.what
    assert finding.command.startswith("export ISORUN_CACHE_DIR=")
