import errno
import gc
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cache_damage import rot
from isorun.errors import CacheError, InvalidModel
from isorun.system.cache import ENVIRONMENT_VARIABLE, Cache, locks, sha256, write_atomically
from isorun.system.cache.files import size_in_bytes

PAYLOAD = b"0123456789" * 1000


class Maker:
    """Makes an entry of one file and counts its calls."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, folder: Path) -> dict[str, int]:
        self.times += 1
        (folder / "payload").write_bytes(PAYLOAD)
        return {"answer": 42}


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def test_entry_is_made_once(cache):
    make = Maker()
    first, second = (cache.get_or_make("kind", "key", make) for _ in range(2))
    assert (first.found, second.found, make.times) == (False, True, 1)
    assert first.folder == second.folder == cache.root / "kind" / "key"
    assert second.meta == {"answer": 42}
    assert (second.folder / "payload").read_bytes() == PAYLOAD
    assert cache.get("kind", "key") == Cache(cache.root).get("kind", "key") == second
    assert cache.get("kind", "other") is None


def test_get_writes_nothing(cache):
    assert cache.get("kind", "key") is None
    assert not cache.root.exists()


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


def test_concurrent_processes_make_an_entry_once(cache, tmp_path):
    log = tmp_path / "log"
    processes = [maker_process(cache, log, "finish") for _ in range(2)]
    assert len({process.communicate(timeout=30)[0] for process in processes}) == 1
    assert [process.returncode for process in processes] == [0, 0]
    assert log.read_text(encoding="utf-8") == "made "


def test_killed_maker_leaves_no_partial_entry(cache, tmp_path):
    with maker_process(cache, tmp_path / "log", "hang") as process:
        assert process.stdout.readline() == "half way\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert cache.get("kind", "key") is None
    assert any((cache.root / "kind").iterdir())
    entry = cache.get_or_make("kind", "key", Maker())
    assert (entry.folder / "payload").read_bytes() == PAYLOAD
    assert list((cache.root / "kind").iterdir()) == [entry.folder]


def test_failing_maker_leaves_nothing_and_its_error_is_raised(cache):
    def fail(folder):
        (folder / "payload").write_bytes(b"half")
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        cache.get_or_make("kind", "key", fail)
    assert list((cache.root / "kind").iterdir()) == []
    assert cache.get_or_make("kind", "key", Maker()).found is False


@pytest.mark.parametrize(
    ("number", "reason", "advice"),
    [
        (errno.ENOSPC, "No space left on device", "cache_dir="),
        (errno.EMFILE, "Too many open files", "Raise the limit of open files of this process"),
    ],
)
def test_full_disk(cache, number, reason, advice):
    def fill(folder):
        raise OSError(number, reason)

    with pytest.raises(CacheError, match=rf"cannot be written to .*{reason}.*{advice}"):
        cache.get_or_make("kind", "key", fill)
    assert list((cache.root / "kind").iterdir()) == []


def test_full_temporary_folder():
    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CacheError, match=r"cache_dir=False, .* \(.*No space left.*\)\. .*set TMPDIR") as caught:
        Cache(False).get_or_make("lowered", "abc", full)
    assert ENVIRONMENT_VARIABLE not in str(caught.value)


def flip_a_byte(entry: Path) -> None:
    payload = entry / "payload"
    content = bytearray(payload.read_bytes())
    content[5000] ^= 1
    payload.write_bytes(content)


DAMAGE = {
    "truncated": lambda entry: (entry / "payload").write_bytes(PAYLOAD[:-1]),
    "a byte flipped": flip_a_byte,
    "a file missing": lambda entry: (entry / "payload").unlink(),
    "no record": lambda entry: (entry / "entry.json").unlink(),
    "a record that is not JSON": lambda entry: (entry / "entry.json").write_bytes(b"\xff\x00{"),
    "a record that is a list": lambda entry: (entry / "entry.json").write_text("[]"),
    "a record without files": lambda entry: (entry / "entry.json").write_text('{"meta": {}}'),
    "a record with invalid files": lambda entry: (entry / "entry.json").write_text('{"files": 3, "meta": {}}'),
    "a record with an invalid file": lambda entry: (entry / "entry.json").write_text(
        '{"files": {"payload": {"stamp": [], "sha256": ""}}, "meta": {}}'
    ),
    "another value in the record": lambda entry: (entry / "entry.json").write_text(
        (entry / "entry.json").read_text(encoding="utf-8").replace("42", "43")
    ),
    "a folder in place of a file": lambda entry: ((entry / "payload").unlink(), (entry / "payload").mkdir()),
    "a file in place of a folder": lambda entry: (
        [file.unlink() for file in entry.iterdir()],
        entry.rmdir(),
        entry.write_text("?"),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_entry_is_made_again(cache, damage):
    make = Maker()
    damage(cache.get_or_make("kind", "key", make).folder)
    assert cache.get("kind", "key") is None
    entry = cache.get_or_make("kind", "key", make)
    assert (entry.found, make.times) == (False, 2)
    assert (entry.folder / "payload").read_bytes() == PAYLOAD
    again = cache.get_or_make("kind", "key", make)
    assert (again.found, again.meta) == (True, {"answer": 42})
    assert list((cache.root / "kind").iterdir()) == [entry.folder]


@pytest.mark.parametrize("how", ["linked", "copied", "of another kind"])
def test_entry_in_place_of_another_is_made_again(cache, how):
    source = cache.get_or_make("other" if how == "of another kind" else "kind", "other", Maker()).folder
    place = cache.root / "kind" / "key"
    place.parent.mkdir(exist_ok=True)
    if how == "linked":
        place.symlink_to(source)
    else:
        shutil.copytree(source, place)
    assert cache.get("kind", "key") is None
    assert cache.get_or_make("kind", "key", Maker()).found is False
    assert not place.is_symlink()
    assert (source / "payload").read_bytes() == PAYLOAD


def test_file_replaced_by_a_link_is_damage(cache, tmp_path):
    payload = cache.get_or_make("kind", "key", Maker()).folder / "payload"
    payload.rename(tmp_path / "moved")
    payload.symlink_to(tmp_path / "moved")
    assert cache.get("kind", "key") is None


def test_verify_finds_bit_rot(cache):
    rot(cache.get_or_make("kind", "key", Maker()).folder / "payload")
    assert cache.get("kind", "key") is not None
    verifying = Cache(cache.root, verify=True)
    assert verifying.get("kind", "key") is None
    entry = verifying.get_or_make("kind", "key", Maker())
    assert (entry.found, (entry.folder / "payload").read_bytes()) == (False, PAYLOAD)


def test_verify_variable(cache, monkeypatch):
    rot(cache.get_or_make("kind", "key", Maker()).folder / "payload")
    monkeypatch.setenv("ISORUN_CACHE_VERIFY", "1")
    assert Cache(cache.root).get("kind", "key") is None
    assert Cache(cache.root, verify=False).get("kind", "key") is not None
    monkeypatch.setenv("ISORUN_CACHE_VERIFY", "yes")
    with pytest.raises(CacheError, match="ISORUN_CACHE_VERIFY"):
        Cache(cache.root)


def test_copied_entry_is_hashed_once(cache, tmp_path):
    cache.get_or_make("kind", "key", Maker())
    shutil.copytree(cache.root, tmp_path / "copy")
    copy = Cache(tmp_path / "copy")
    time.sleep(0.03)  # past the tick of the copy's last change
    assert copy.get("kind", "key") is not None
    stamp = (copy.root / "kind" / "key" / "payload").stat()
    record = json.loads((copy.root / "kind" / "key" / "entry.json").read_bytes())["content"]
    assert record["files"]["payload"]["stamp"][-1] == stamp.st_ino
    assert copy.get("kind", "key") is not None


@pytest.mark.parametrize(("umask", "folder", "file"), [(0o022, 0o755, 0o644), (0, 0o755, 0o644), (0o077, 0o700, 0o600)])
def test_permissions_of_entries(cache, umask, folder, file):
    before = os.umask(umask)
    try:
        entry = cache.get_or_make("kind", "key", make_file_of_mode(0o600))
        private = cache.get_or_make("kind", "private", make_file_of_mode(0o644), private=True)
    finally:
        os.umask(before)
    for cached, of_folder, of_files in ((entry, folder, file), (private, 0o700, 0o600)):
        assert {stat.S_IMODE(path.stat().st_mode) for path in (cache.root, *cached.folder.parents[:2])} == {folder}
        assert stat.S_IMODE(cached.folder.stat().st_mode) == of_folder
        assert {stat.S_IMODE(path.stat().st_mode) for path in cached.folder.iterdir()} == {of_files}


def make_file_of_mode(mode: int) -> Callable[[Path], dict[str, Any]]:
    """Makes a file as libraries do that set permissions themselves."""

    def make(folder: Path) -> dict[str, Any]:
        (folder / "payload").write_bytes(PAYLOAD)
        (folder / "payload").chmod(mode)
        return {}

    return make


def test_root_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path / "environment"))
    assert Cache().root == tmp_path / "environment"
    assert Cache(tmp_path / "given").root == tmp_path / "given"
    monkeypatch.delenv(ENVIRONMENT_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert Cache().root == tmp_path / ".cache" / "isorun"
    assert Cache("~/mine").root == tmp_path / "mine"


def test_write_atomically_replaces_or_keeps_the_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(path, b"newer")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_cache_is_private_and_removed():
    with_release, collected, inherited = (Cache(False) for _ in range(3))
    for cache in (with_release, collected, inherited):
        cache.get_or_make("kind", "key", Maker())
        assert stat.S_IMODE(cache.root.stat().st_mode) == 0o700
    with_release.release()
    assert not with_release.root.exists()
    folder = collected.root
    del collected, cache
    gc.collect()
    assert not folder.exists()
    if (child := os.fork()) == 0:
        inherited.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert inherited.root.exists()


@pytest.mark.parametrize(("text", "size"), [("10", 10), ("1.5 kB", 1500), ("2MiB", 2 * 1024**2), ("3g", 3 * 10**9)])
def test_sizes(text, size):
    assert size_in_bytes(text) == size


def test_the_limit_removes_what_was_not_used_for_longest(tmp_path, monkeypatch):
    monkeypatch.setenv("ISORUN_CACHE_LIMIT", "3000")
    limited = Cache(tmp_path)
    for number, key in enumerate(("first", "second", "third")):
        limited.get_or_make("kind", key, lambda folder: {"bytes": (folder / "payload").write_bytes(bytes(1000))})
        os.utime(tmp_path / "kind" / key, ns=(number, number))
    assert limited.get("kind", "first")  # its last use is now
    limited.release()
    used = Cache(tmp_path)
    assert used.get("kind", "third")
    os.utime(tmp_path / "kind" / "third", ns=(0, 0))
    Cache(tmp_path).get_or_make("kind", "fourth", lambda _: {})
    # The third is in use, though its last use is the earliest.
    assert {path.name for path in (tmp_path / "kind").iterdir()} == {"first", "third", "fourth"}
    monkeypatch.setenv("ISORUN_CACHE_LIMIT", "much")
    with pytest.raises(CacheError, match=r"ISORUN_CACHE_LIMIT.*'much'"):
        Cache(tmp_path)


def test_makes_an_entry_again_whose_record_is_nested_deeply(cache):
    make = Maker()
    entry = cache.get_or_make("kind", "key", make)
    record = entry.folder / "entry.json"
    record.chmod(0o644)
    record.write_bytes(b"[" * 100_000)
    assert Cache(cache.root).get("kind", "key") is None
    assert not Cache(cache.root).get_or_make("kind", "key", make).found
    assert make.times == 2


def test_hashes_again_if_a_stored_fingerprint_is_nested_deeply(cache, tmp_path):
    model = tmp_path / "model"
    model.write_bytes(PAYLOAD)
    fingerprint = cache.fingerprint(lambda: [model], model)
    notes = cache.root / "fingerprints"
    notes.mkdir(exist_ok=True)
    (notes / sha256(os.fsencode(model))).write_bytes(b"[" * 100_000)
    assert cache.fingerprint(lambda: [model], model) == fingerprint


def test_rejects_a_user_without_a_home(monkeypatch):
    def user_cache_path(name):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", user_cache_path)
    with pytest.raises(CacheError, match=r"could not determine the home.*Set \$ISORUN_CACHE_DIR or HOME"):
        Cache()


def test_rejects_a_missing_temporary_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(CacheError, match=r"temporary folder.*Set TMPDIR"):
        Cache(False)


def test_removes_what_makers_of_other_entries_have_left(cache):
    cache.get_or_make("kind", "key", Maker())
    left, alive = (cache.root / "kind" / f".{key}.0123456789ab" for key in ("dead", "alive"))
    for folder in (left, alive):
        folder.mkdir()
        (folder / "weights").write_bytes(PAYLOAD)
    with locks.exclusive(locks.lock_file(cache.root / "kind" / "alive"), "the entry"):
        cache.get_or_make("kind", "another", Maker())
        assert (left.exists(), alive.exists()) == (False, True)


def test_makes_an_entry_again_that_must_be_private(cache):
    make = Maker()
    cache.get_or_make("kind", "key", make)
    assert not cache.get_or_make("kind", "key", make, private=True).found
    assert (cache.root / "kind" / "key" / "payload").stat().st_mode & 0o777 == 0o600
    assert cache.get_or_make("kind", "key", make, private=True).found
    assert cache.get_or_make("kind", "key", make).found
    assert make.times == 2


def test_rejects_a_file_that_cannot_be_read(cache, tmp_path, monkeypatch):
    def refuse(*paths):
        raise PermissionError(errno.EACCES, "Permission denied", str(paths[0]))

    model = tmp_path / "model"
    model.write_bytes(PAYLOAD)
    monkeypatch.setattr("isorun.system.cache.files.sha256_of", refuse)
    with pytest.raises(InvalidModel, match=r"Cannot read .*model: Permission denied"):
        cache.fingerprint(lambda: [model], model)
