"""Damaged caches."""

from __future__ import annotations

from isorun.cli.doctor import entries
from isorun.system.cache import Cache


def test_missing_cache_is_no_finding(tmp_path):
    assert list(entries.findings(Cache(tmp_path / "deep" / "down"))) == []
    assert list(tmp_path.iterdir()) == []


def test_cache_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    (finding,) = entries.findings(Cache(tmp_path / "file" / "cache"))
    assert str(tmp_path / "file") in finding.what
    assert finding.command.startswith("export ISORUN_CACHE_DIR=")
