"""Ownership and permissions of cached files."""

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import programs
from isorun.errors import CacheError
from isorun.system.cache import Cache, trust

ME, ANOTHER = 1000, 1001
FOLDER, FILE = stat.S_IFDIR, stat.S_IFREG
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


def status(mode: int, uid: int, gid: int = 50) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("status", "trusted"),
    [
        (status(FOLDER | 0o755, ME), True),
        (status(FOLDER | 0o755, 0), True),
        (status(FOLDER | 0o755, ANOTHER), False),
        (status(FOLDER | 0o700, ANOTHER), False),
        (status(FOLDER | 0o775, ME), False),
        (status(FOLDER | 0o757, ME), False),
        (status(FOLDER | 0o1777, 0), True),
        (status(FOLDER | 0o1777, ANOTHER), False),
        (status(FOLDER | 0o775, ME, gid=70), True),
        (status(FOLDER | 0o777, ME, gid=70), False),
        (status(FILE | 0o644, ME), True),
        (status(FILE | 0o664, ME), False),
        (status(FILE | 0o1666, ME), False),
        (status(FILE | 0o644, ANOTHER), False),
    ],
)
def test_trusts_only_what_no_other_user_can_write(status, trusted):
    assert (trust.why_distrusted(status, ME, private_groups={70}) == "") is trusted


def make(folder: Path) -> dict[str, int]:
    (folder / "payload").write_bytes(b"sound")
    return {}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    filled = Cache(tmp_path / "cache")
    filled.get_or_make("kind", "key", make)
    filled.fingerprint(lambda: [tmp_path / "model"], _model(tmp_path))
    return filled


def _model(folder: Path) -> Path:
    (folder / "model").write_bytes(b"model")
    return folder / "model"


PLACES = ["", "kind", "kind/key", "kind/key/entry.json", "kind/key/payload"]


@pytest.mark.parametrize("place", PLACES)
def test_rejects_files_that_others_can_write(cache, place):
    (cache.root / place).chmod(0o777)
    for use in (lambda: cache.get("kind", "key"), lambda: cache.get_or_make("kind", "key", make)):
        with pytest.raises(CacheError, match=r"writable by other users.*chmod go-w.*ISORUN_CACHE_TRUST") as refused:
            use()
        assert str(cache.root / place) in str(refused.value)


@needs_root
@pytest.mark.parametrize("place", PLACES)
def test_rejects_files_of_another_user(cache, place):
    os.chown(cache.root / place, NOBODY, -1)
    with pytest.raises(CacheError, match=f"belongs to user .*{NOBODY}"):
        cache.get("kind", "key")


@pytest.mark.parametrize("place", ["", "fingerprints", "note"])
def test_rejects_a_note_that_others_can_write(cache, tmp_path, place):
    (note,) = (cache.root / "fingerprints").iterdir()
    (note if place == "note" else cache.root / place).chmod(0o777)
    with pytest.raises(CacheError, match="writable by other users"):
        cache.fingerprint(lambda: [tmp_path / "model"], tmp_path / "model")


def test_makes_nothing_in_a_folder_that_others_can_write(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(CacheError, match="writable by other users"):
        Cache(tmp_path / "cache").get_or_make("kind", "key", make)


def test_trust_variable(cache, monkeypatch):
    (cache.root / "kind").chmod(0o777)
    monkeypatch.setenv(trust.ENVIRONMENT_VARIABLE, "any")
    assert cache.get("kind", "key") is not None
    monkeypatch.setenv(trust.ENVIRONMENT_VARIABLE, "1")
    with pytest.raises(CacheError, match="must be 'any' or unset, got '1'"):
        cache.get("kind", "key")


USE = """
import grp, json, os, pwd, sys  # imported now, since other users may not be able to read Python's files
from isorun.system.cache import Cache
from isorun.errors import CacheError
Cache(sys.argv[2]).get_or_make("kind", "key", lambda folder: {})
os.setgid(65534)
os.setuid(65534)
try:
    entry = Cache(sys.argv[1]).get_or_make("kind", "key", lambda folder: {})
    print(json.dumps([entry.found, (entry.folder / "payload").read_text(encoding="utf-8")]))
except CacheError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def shared() -> Iterator[Cache]:
    """A cache of root in a folder that other users can read, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        filled = Cache(Path(folder) / "cache")
        filled.get_or_make("kind", "key", make)
        yield filled


def as_nobody(cache: Cache, scratch: Path) -> object:
    """The entry that another user gets from a cache, or the error."""
    return json.loads(programs.printed(USE, cache.root, scratch))


@needs_root
def test_entries_of_root_are_used_by_every_user(shared, tmp_path):
    assert as_nobody(shared, tmp_path) == [True, "sound"]


@needs_root
def test_entries_of_a_third_user_are_rejected(shared, tmp_path):
    entry = shared.root / "kind" / "key"
    for path in (entry, *entry.iterdir()):
        os.chown(path, 12345, -1)
    assert "belongs to user 12345" in str(as_nobody(shared, tmp_path))


@needs_root
def test_links_of_another_user_are_rejected(cache, tmp_path):
    shutil.move(cache.root / "kind", tmp_path / "elsewhere")
    (cache.root / "kind").symlink_to(tmp_path / "elsewhere")
    assert cache.get("kind", "key") is not None
    os.lchown(cache.root / "kind", NOBODY, -1)
    with pytest.raises(CacheError, match="link of user"):
        cache.get("kind", "key")
