"""Damaged caches."""

import os

import pytest

from isorun.cli.doctor import entries
from isorun.errors import CacheError
from isorun.system.cache import Cache


def test_missing_cache_is_no_finding(tmp_path):
    assert list(entries.findings(Cache(tmp_path / "deep" / "down"))) == []
    assert list(tmp_path.iterdir()) == []


def test_an_entry_that_others_can_write_is_an_error(tmp_path):
    cache = Cache(tmp_path)
    entry = cache.get_or_make("engines", "0" * 64, lambda folder: (folder / "engine").write_text("content"))
    (entry.folder / "engine").chmod(0o666)
    (finding,) = entries.findings(cache)
    assert finding.severity == "error"
    assert "damaged" not in finding.what
    with pytest.raises(CacheError):
        cache.get("engines", "0" * 64)


@pytest.mark.parametrize("name", ["engines", "locks", "fingerprints", "fingerprints/*"])
def test_a_folder_or_note_that_others_can_write_is_an_error(tmp_path, name):
    cache = Cache(tmp_path / "cache")
    model = tmp_path / "model"
    model.write_text("content")
    os.utime(model, (1, 1))

    def use():
        cache.fingerprint(lambda: [model], model)
        cache.get_or_make("engines", "1" * 64, lambda folder: (folder / "engine").write_text("content"))

    cache.get_or_make("engines", "0" * 64, lambda folder: (folder / "engine").write_text("content"))
    use()
    (path,) = cache.root.glob(name)
    path.chmod(path.stat().st_mode | 0o002)
    (finding,) = entries.findings(cache)
    assert finding.severity == "error"
    assert str(path.relative_to(cache.root)) in finding.what
    assert ("--clear" in finding.command) == path.is_file()
    (cache.root / "engines" / ("1" * 64)).rename(tmp_path / "moved")
    with pytest.raises(CacheError, match=str(path)):
        use()


def test_cache_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    (finding,) = entries.findings(Cache(tmp_path / "file" / "cache"))
    assert str(tmp_path / "file") in finding.what
    assert finding.command.startswith("export ISORUN_CACHE_DIR=")


@pytest.mark.parametrize(("filled", "severity"), [(False, "error"), (True, "warning")])
def test_read_only_cache_is_an_error_when_it_is_empty(tmp_path, monkeypatch, filled, severity):
    cache = Cache(tmp_path)
    if filled:
        cache.get_or_make("engines", "0" * 64, lambda folder: (folder / "engine").write_text("content"))
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # as root, everything can be written
    (finding,) = entries.findings(cache)
    assert (finding.severity, "cannot be written" in finding.what) == (severity, True)
