"""Stored fingerprints of files."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from cache_damage import replace_in_place
from isorun.errors import InvalidModel
from isorun.system.cache import Cache, maintenance, sha256


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


class Listing:
    def __init__(self, *paths: Path) -> None:
        self.paths, self.times = paths, 0

    def __call__(self) -> list[Path]:
        self.times += 1
        return list(self.paths)


@pytest.fixture
def files(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name * 10)
    return Listing(tmp_path / "a", tmp_path / "b")


def test_fingerprint_is_stored(cache, files):
    first = cache.fingerprint(files, files.paths[0])
    assert cache.fingerprint(files, files.paths[0]) == first
    assert files.times == 1
    size = (10).to_bytes(8, "little")
    assert first == hashlib.sha256(size + b"a" * 10 + size + b"b" * 10).hexdigest()
    assert Cache(cache.root, verify=True).fingerprint(files, files.paths[0]) == first
    assert files.times == 2, "a verifying cache reads no notes"


def rewrite_keeping_size_and_time(path: Path) -> None:
    before = path.stat()
    path.with_name("new").write_bytes(b"c" * before.st_size)
    path.with_name("new").replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = {
    "longer": lambda path: path.write_text("longer than before"),
    "as long": lambda path: (path.write_text("c" * 10), os.utime(path, (5, 5))),
    "as long and as old": rewrite_keeping_size_and_time,
    "as long, as old and in place": lambda path: replace_in_place(path, b"c" * 10),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("which", [0, 1])
def test_change_is_noticed(cache, files, change, which):
    before = cache.fingerprint(files, files.paths[0])
    change(files.paths[which])
    assert cache.fingerprint(files, files.paths[0]) != before
    assert files.times == 2


@pytest.mark.parametrize("garbage", [b"\xff", b"[1]", b'{"files": [[1, 2]]}', b'{"files": 3, "sha256": 1}'])
def test_damaged_note_is_replaced(cache, files, garbage):
    before = cache.fingerprint(files, files.paths[0])
    (note,) = (cache.root / "fingerprints").iterdir()
    note.write_bytes(garbage)
    assert cache.fingerprint(files, files.paths[0]) == before
    assert cache.fingerprint(files, files.paths[0]) == before
    assert files.times == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_pipes_in_place_of_notes_and_records_are_replaced(cache, files):
    before = cache.fingerprint(files, files.paths[0])
    entry = cache.get_or_make("lowered", "key", lambda folder: {})
    (note,) = (cache.root / "fingerprints").iterdir()
    for path in (note, entry.folder / "entry.json"):
        path.unlink()
        os.mkfifo(path)  # to open it waits until somebody writes
    assert {item.kind for item in maintenance.survey(cache.root)} == {"lowered"}
    assert cache.fingerprint(files, files.paths[0]) == before
    assert not cache.get_or_make("lowered", "key", lambda folder: {}).found
    assert note.is_file()


def test_fingerprint_that_cannot_be_stored(cache, tmp_path, files):
    root = tmp_path / "file"
    root.write_text("")
    expected = cache.fingerprint(files, files.paths[0])
    assert [Cache(root).fingerprint(files, files.paths[0]) for _ in range(2)] == [expected, expected]
    assert files.times == 3


def test_second_change_within_a_tick_is_noticed(cache, tmp_path):
    """File times have a resolution of milliseconds, so both changes may have the same time."""
    path = tmp_path / "model"
    for number in range(20):
        path.write_bytes(b"%05d" % (2 * number))
        before = cache.fingerprint(lambda: [path], path)
        replace_in_place(path, b"%05d" % (2 * number + 1))
        assert cache.fingerprint(lambda: [path], path) != before


def test_file_that_changes_meanwhile_is_hashed_again(cache, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"old")
    times = 0

    def listing() -> list[Path]:
        nonlocal times
        times += 1
        if times == 1:
            path.write_bytes(b"new")
        return [path]

    assert cache.fingerprint(listing, path) == hashlib.sha256(b"new").hexdigest()
    assert times == 2


def test_file_that_keeps_changing_is_an_error(cache, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"0")

    def listing() -> list[Path]:
        path.write_bytes(str(time.monotonic_ns()).encode())
        return [path]

    with pytest.raises(InvalidModel, match="changed while"):
        cache.fingerprint(listing, path)


def test_swapped_notes_are_ignored(cache, tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    for path in (first, second):
        path.write_text(path.name)
    prints = {path: cache.fingerprint(lambda path=path: [path], path) for path in (first, second)}
    notes = {path: cache.root / "fingerprints" / sha256(os.fsencode(path)) for path in (first, second)}
    content = notes[first].read_bytes()
    notes[first].write_bytes(notes[second].read_bytes())
    notes[second].write_bytes(content)
    assert {path: cache.fingerprint(lambda path=path: [path], path) for path in (first, second)} == prints


def test_flipped_bit_in_a_note_is_detected(cache, files):
    before = cache.fingerprint(files, files.paths[0])
    (note,) = (cache.root / "fingerprints").iterdir()
    sound = note.read_bytes()
    for place in range(len(sound)):
        note.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        assert cache.fingerprint(files, files.paths[0]) == before


def test_the_same_bytes_in_other_files_are_another_model(cache, tmp_path):
    paths = [tmp_path / name for name in ("main", "one", "two")]
    digests = set()
    for first, second in ((b"ab", b"c"), (b"a", b"bc"), (b"abc", b"")):
        for path, content in zip(paths, (b"main", first, second), strict=True):
            path.write_bytes(content)
        digests.add(Cache(cache.root, verify=True).fingerprint(lambda: paths, paths[0]))
    assert len(digests) == 3


def test_the_fingerprint_of_one_file_is_its_sha256(cache, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    assert cache.fingerprint(lambda: [tmp_path / "a"], tmp_path / "a") == hashlib.sha256(b"a").hexdigest()
