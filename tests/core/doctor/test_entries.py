"""A cache that is damaged on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from isorun.doctor import entries
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
        ("model.onnx", b"short", "model.onnx is not as it was written"),
        ("model.onnx", b"MODEL" * 100, "model.onnx is not as it was written"),
        ("model.onnx", None, "FileNotFoundError"),
        ("entry.json", b"{", "JSONDecodeError"),
        ("entry.json", b"[]", "TypeError"),
        ("entry.json", b"{}", "KeyError"),
    ],
)
def test_a_damaged_entry_is_named_and_left_as_it_is(cache, file, content, why):
    assert list(entries.findings(cache)) == []
    path = cache.root / "lowered" / "b" / file
    path.unlink() if content is None else path.write_bytes(content)
    before = {each: each.read_bytes() for each in cache.root.rglob("*") if each.is_file()}
    (finding,) = entries.findings(cache)
    assert finding.what.startswith("lowered/b is damaged: ")
    assert why in finding.what
    assert finding.command == "isorun cache --clear"
    assert cache.get("lowered", "b") is None  # a session would make it anew
    assert {each: each.read_bytes() for each in cache.root.rglob("*") if each.is_file()} == before


def test_an_entry_that_was_copied_is_no_damage(cache):
    path = cache.root / "lowered" / "a" / "model.onnx"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    assert list(entries.findings(cache)) == []


def test_a_cache_that_is_not_there_yet_is_well(tmp_path):
    assert list(entries.findings(Cache(tmp_path / "deep" / "down"))) == []
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_one(tmp_path):
    (tmp_path / "file").write_text("")
    (finding,) = entries.findings(Cache(tmp_path / "file" / "cache"))
    assert finding.what == f"{tmp_path / 'file'} is no folder"
    assert finding.command.startswith("export ISORUN_CACHE_DIR=")
