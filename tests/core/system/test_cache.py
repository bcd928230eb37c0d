from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isorun.errors import CacheError
from isorun.system.cache import ENVIRONMENT_VARIABLE, Cache, write_atomically

PAYLOAD = b"0123456789" * 1000


class Maker:
    """Makes an entry of one file and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, folder: Path) -> dict[str, int]:
        self.times += 1
        (folder / "payload").write_bytes(PAYLOAD)
        return {"answer": 42}


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def test_an_entry_is_made_once_and_found_after(cache):
    make = Maker()
    first, second = (cache.get_or_make("kind", "key", make) for _ in range(2))
    assert (first.found, second.found, make.times) == (False, True, 1)
    assert first.folder == second.folder == cache.root / "kind" / "key"
    assert second.meta == {"answer": 42}
    assert (second.folder / "payload").read_bytes() == PAYLOAD
    assert cache.get("kind", "key") == second
    assert cache.get("kind", "other") is None


def test_another_process_finds_it(cache):
    cache.get_or_make("kind", "key", Maker())
    assert Cache(cache.root).get("kind", "key").meta == {"answer": 42}


def test_looking_for_an_entry_writes_nothing(cache):
    assert cache.get("kind", "key") is None
    assert not cache.root.exists()


@pytest.mark.parametrize("workers", [8])
def test_many_that_want_the_same_entry_make_it_once(cache, workers):
    make = Maker()
    start = threading.Barrier(workers)

    def slowly(folder):
        time.sleep(0.05)
        return make(folder)

    def want(_):
        start.wait()
        return Cache(cache.root).get_or_make("kind", "key", slowly)

    with ThreadPoolExecutor(workers) as pool:
        entries = list(pool.map(want, range(workers)))
    assert make.times == 1
    assert sorted(entry.found for entry in entries) == [False] + [True] * (workers - 1)


MAKER_PROCESS = """
import sys, time
from pathlib import Path
from isorun.system.cache import Cache

def make(folder):
    (folder / "payload").write_bytes(b"half")
    with open(sys.argv[2], "a") as made:
        made.write("made ")
    if sys.argv[3] == "hang":
        print("half way", flush=True)
        time.sleep(60)
    time.sleep(0.2)
    (folder / "payload").write_bytes(b"whole")
    return {}

print(Cache(sys.argv[1]).get_or_make("kind", "key", make).folder)
"""


def maker_process(cache: Cache, log: Path, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAKER_PROCESS, str(cache.root), str(log), what]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_that_want_the_same_entry_make_it_once(cache, tmp_path):
    log = tmp_path / "log"
    processes = [maker_process(cache, log, "finish") for _ in range(2)]
    assert len({process.communicate(timeout=30)[0] for process in processes}) == 1
    assert [process.returncode for process in processes] == [0, 0]
    assert log.read_text() == "made "


def test_a_maker_that_is_killed_leaves_nothing_half_made(cache, tmp_path):
    with maker_process(cache, tmp_path / "log", "hang") as process:
        assert process.stdout.readline() == "half way\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert cache.get("kind", "key") is None
    assert any((cache.root / "kind").iterdir()), "the half is there, out of the way"
    entry = cache.get_or_make("kind", "key", Maker())
    assert (entry.folder / "payload").read_bytes() == PAYLOAD
    assert list((cache.root / "kind").iterdir()) == [entry.folder], "what the dead maker left is gone"


def test_a_maker_that_fails_leaves_nothing_and_its_error_is_the_callers(cache):
    def fail(folder):
        (folder / "payload").write_bytes(b"half")
        raise ZeroDivisionError("the maker's own")

    with pytest.raises(ZeroDivisionError, match="the maker's own"):
        cache.get_or_make("kind", "key", fail)
    assert list((cache.root / "kind").iterdir()) == []
    assert cache.get_or_make("kind", "key", Maker()).found is False


def test_a_disk_that_is_full(cache):
    def fill(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CacheError, match=r"cannot be written to .*No space left.*cache_dir="):
        cache.get_or_make("kind", "key", fill)
    assert list((cache.root / "kind").iterdir()) == []


def flip_a_byte(entry: Path) -> None:
    payload = entry / "payload"
    content = bytearray(payload.read_bytes())
    content[5000] ^= 1
    payload.write_bytes(content)


DAMAGE = {
    "truncated": lambda entry: (entry / "payload").write_bytes(PAYLOAD[:-1]),
    "empty": lambda entry: (entry / "payload").write_bytes(b""),
    "a byte flipped": flip_a_byte,
    "a file missing": lambda entry: (entry / "payload").unlink(),
    "no record": lambda entry: (entry / "entry.json").unlink(),
    "an empty record": lambda entry: (entry / "entry.json").write_text(""),
    "a record that is no JSON": lambda entry: (entry / "entry.json").write_bytes(b"\xff\x00{"),
    "a record of nothing": lambda entry: (entry / "entry.json").write_text("null"),
    "a record that is a list": lambda entry: (entry / "entry.json").write_text("[]"),
    "a record without files": lambda entry: (entry / "entry.json").write_text('{"meta": {}}'),
    "a record with files of no kind": lambda entry: (entry / "entry.json").write_text('{"files": 3, "meta": {}}'),
    "a record with files in a list": lambda entry: (entry / "entry.json").write_text('{"files": [], "meta": {}}'),
    "a record with a file of no kind": lambda entry: (entry / "entry.json").write_text(
        '{"files": {"payload": {"stamp": [], "sha256": ""}}, "meta": {}}'
    ),
    "another answer remembered": lambda entry: (entry / "entry.json").write_text(
        (entry / "entry.json").read_text().replace("42", "43")
    ),
    "a folder for a file": lambda entry: ((entry / "payload").unlink(), (entry / "payload").mkdir()),
    "a file for a folder": lambda entry: (
        [file.unlink() for file in entry.iterdir()],
        entry.rmdir(),
        entry.write_text("?"),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_made_anew(cache, damage):
    make = Maker()
    damage(cache.get_or_make("kind", "key", make).folder)
    assert cache.get("kind", "key") is None
    entry = cache.get_or_make("kind", "key", make)
    assert (entry.found, make.times) == (False, 2)
    assert (entry.folder / "payload").read_bytes() == PAYLOAD
    again = cache.get_or_make("kind", "key", make)
    assert (again.found, again.meta) == (True, {"answer": 42})
    assert list((cache.root / "kind").iterdir()) == [entry.folder]


def test_a_file_that_was_only_touched_is_sound(cache):
    entry = cache.get_or_make("kind", "key", Maker())
    os.utime(entry.folder / "payload", (1, 1))
    assert cache.get("kind", "key") is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    with pytest.raises(CacheError, match=r"locked.* cannot be written to .*cache_dir=.*ISORUN_CACHE_DIR"):
        Cache(locked / "cache").get_or_make("kind", "key", Maker())


def test_a_root_that_is_a_file(tmp_path):
    root = tmp_path / "file"
    root.write_text("")
    with pytest.raises(CacheError, match=r"file cannot be written to .*cache_dir=.*ISORUN_CACHE_DIR"):
        Cache(root).get_or_make("kind", "key", Maker())


def test_a_fingerprint_that_cannot_be_remembered_is_given_all_the_same(cache, tmp_path, files):
    root = tmp_path / "file"
    root.write_text("")
    expected = cache.fingerprint(files, files.paths[0])
    assert [Cache(root).fingerprint(files, files.paths[0]) for _ in range(2)] == [expected, expected]
    assert files.times == 3


def test_the_root_is_given_or_the_environments_or_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "environment"))
    assert Cache().root == tmp_path / "environment"
    assert Cache(tmp_path / "given").root == tmp_path / "given"
    monkeypatch.delenv(ENVIRONMENT_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert Cache().root == tmp_path / ".cache" / "isorun"
    assert Cache("~/mine").root == tmp_path / "mine"


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
    assert json.loads(note.read_text())["sha256"] == before


def test_writing_atomically_replaces_or_leaves_alone(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"newer")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
