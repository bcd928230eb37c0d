"""Fingerprints of files: remembered, and never another file's."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from cache_damage import replace_in_place
from isorun.errors import InvalidModel
from isorun.system.cache import Cache, sha256


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


def test_a_fingerprint_is_remembered(cache, files):
    first = cache.fingerprint(files, files.paths[0])
    assert cache.fingerprint(files, files.paths[0]) == first
    assert files.times == 1
    assert first == hashlib.sha256(b"a" * 10 + b"b" * 10).hexdigest()


def rewrite_keeping_size_and_time(path: Path) -> None:
    before = path.stat()
    path.with_name("new").write_bytes(b"c" * before.st_size)
    path.with_name("new").replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = {
    "longer": lambda path: path.write_text("longer than before"),
    "as long": lambda path: (path.write_text("c" * 10), os.utime(path, (5, 5))),
    "as long and as old": rewrite_keeping_size_and_time,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("which", [0, 1])
def test_a_change_is_noticed(cache, files, change, which):
    before = cache.fingerprint(files, files.paths[0])
    change(files.paths[which])
    assert cache.fingerprint(files, files.paths[0]) != before
    assert files.times == 2


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff", b"null", b"[1]", b'{"files": [[1, 2]]}', b'{"files": 3, "sha256": 1}']
)
def test_a_damaged_memory_is_no_memory(cache, files, garbage):
    before = cache.fingerprint(files, files.paths[0])
    (note,) = (cache.root / "fingerprints").iterdir()
    note.write_bytes(garbage)
    assert cache.fingerprint(files, files.paths[0]) == before
    assert cache.fingerprint(files, files.paths[0]) == before
    assert files.times == 2, "and remembered again"


def test_a_fingerprint_that_cannot_be_remembered_is_returned_all_the_same(cache, tmp_path, files):
    root = tmp_path / "file"
    root.write_text("")
    expected = cache.fingerprint(files, files.paths[0])
    assert [Cache(root).fingerprint(files, files.paths[0]) for _ in range(2)] == [expected, expected]
    assert files.times == 3


@pytest.mark.parametrize("which", [0, 1])
def test_a_replacement_of_the_same_size_time_and_inode_is_noticed(cache, files, which):
    for path in files.paths:
        os.utime(path, (0, 0))
    before = cache.fingerprint(files, files.paths[0])
    replace_in_place(files.paths[which], b"c" * 10)
    assert cache.fingerprint(files, files.paths[0]) != before


def test_a_change_in_the_tick_of_the_one_before_is_noticed(cache, tmp_path):
    """The kernel's clock ticks every few milliseconds: both changes may have one time."""
    path = tmp_path / "model"
    for number in range(20):
        path.write_bytes(b"%05d" % (2 * number))
        before = cache.fingerprint(lambda: [path], path)
        replace_in_place(path, b"%05d" % (2 * number + 1))
        assert cache.fingerprint(lambda: [path], path) != before


def test_files_that_change_while_they_are_hashed_are_hashed_again(cache, tmp_path):
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


def test_a_file_that_never_rests_is_an_error(cache, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"0")

    def listing() -> list[Path]:
        path.write_bytes(str(time.monotonic_ns()).encode())
        return [path]

    with pytest.raises(InvalidModel, match="changes while"):
        cache.fingerprint(listing, path)


def test_the_note_of_one_file_in_the_place_of_anothers_is_no_note(cache, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.write_text(path.name)
    prints = {path: cache.fingerprint(lambda path=path: [path], path) for path in (one, two)}
    notes = {path: cache.root / "fingerprints" / sha256(os.fsencode(path)) for path in (one, two)}
    content = notes[one].read_bytes()
    notes[one].write_bytes(notes[two].read_bytes())
    notes[two].write_bytes(content)
    assert {path: cache.fingerprint(lambda path=path: [path], path) for path in (one, two)} == prints


def test_a_flipped_bit_in_a_note_never_gives_another_fingerprint(cache, files):
    before = cache.fingerprint(files, files.paths[0])
    (note,) = (cache.root / "fingerprints").iterdir()
    sound = note.read_bytes()
    for place in range(len(sound)):
        note.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        assert cache.fingerprint(files, files.paths[0]) == before


def test_a_verifying_cache_trusts_no_note(cache, files):
    before = cache.fingerprint(files, files.paths[0])
    assert Cache(cache.root, verify=True).fingerprint(files, files.paths[0]) == before
    assert files.times == 2
