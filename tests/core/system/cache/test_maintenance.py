"""Listing, verifying and clearing a cache."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from isorun.errors import CacheError
from isorun.system.cache import Cache, maintenance, stages


def make(folder: Path) -> dict[str, int]:
    (folder / "payload").write_bytes(b"0123456789" * 10)
    return {}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """A cache with two entries and a note, none of them in use."""
    filled = Cache(tmp_path / "cache")
    (tmp_path / "model").write_bytes(b"model")
    filled.fingerprint(lambda: [tmp_path / "model"], tmp_path / "model")
    for key in ("one", "two"):
        filled.get_or_make("lowered", key, make)
    filled.release()
    return filled


def listed(cache: Cache) -> set[tuple[str, str]]:
    return {(item.kind, item.key) for item in maintenance.survey(cache.root) if item.kind != "fingerprints"}


def test_clear_removes_what_isorun_created(cache):
    assert listed(cache) == {("lowered", "one"), ("lowered", "two")}
    assert maintenance.clear(cache.root) == {}
    assert list(maintenance.survey(cache.root)) == []
    assert cache.get("lowered", "one") is None


def test_clear_keeps_files_of_the_user(cache):
    projects = [cache.root / "projects" / "mine", cache.root / "lowered" / "mine", cache.root / "mine"]
    for project in projects:
        project.mkdir(parents=True)
        (project / "work.txt").write_text("the user's")
    (projects[0] / "entry.json").write_text(json.dumps({"files": {}, "meta": {}}))
    (projects[1] / "entry.json").write_text("{}")
    (cache.root / "fingerprints" / ("0" * 64)).write_text("the user's")
    left = maintenance.clear(cache.root)
    assert set(left) == set(projects[:2])
    assert all((project / "work.txt").exists() for project in projects)
    assert (cache.root / "fingerprints" / ("0" * 64)).exists()
    assert listed(cache) == set()


def test_lists_and_clears_what_backends_store_without_a_record(cache):
    stored = [
        "ort-engines/" + "a" * 40,
        "timings/" + "b" * 40 + ".bin",
        "timings/TensorrtExecutionProvider_sm90.timing",
    ]
    users = ["ort-engines/mine", "timings/notes.txt"]
    for name in (*stored, *users):
        path = cache.root / name
        path.parent.mkdir(exist_ok=True)
        if path.suffix:
            path.write_bytes(b"12345")
        else:
            path.mkdir()
            (path / "engine").write_bytes(b"12345")
    items = {f"{item.kind}/{item.key}": item.bytes for item in maintenance.survey(cache.root)}
    assert {name: size for name, size in items.items() if name.startswith(("ort-engines", "timings"))} == dict.fromkeys(
        stored, 5
    )
    assert maintenance.damaged(cache.root, full=True) == {}
    assert maintenance.clear(cache.root) == {}
    assert [name for name in (*stored, *users) if (cache.root / name).exists()] == users


@pytest.mark.parametrize("level", ["entry", "kind"])
def test_clear_follows_no_link(cache, tmp_path, level):
    elsewhere = Cache(tmp_path / "elsewhere")
    for kind in ("lowered", "aside"):
        elsewhere.get_or_make(kind, "key", make)
    if level == "entry":
        (cache.root / "lowered" / "key").symlink_to(elsewhere.root / "lowered" / "key")
    else:
        (cache.root / "aside").symlink_to(elsewhere.root / "aside")
    left = maintenance.clear(cache.root)
    assert listed(cache) == set()
    assert listed(elsewhere) == {("lowered", "key"), ("aside", "key")}
    if level == "entry":
        assert "symbolic link" in left[cache.root / "lowered" / "key"]


def test_clear_rejects_a_folder_that_isorun_never_used(cache, tmp_path):
    cache.root.joinpath(".isorun-cache").unlink()
    with pytest.raises(CacheError, match=r"Nothing was removed.*ISORUN_CACHE_DIR"):
        maintenance.clear(cache.root)
    assert len(listed(cache)) == 2
    assert maintenance.clear(tmp_path / "absent") == {}


def test_clear_removes_damaged_entries_and_leftovers(cache):
    (cache.root / "lowered" / "one" / "payload").unlink()
    (cache.root / "lowered" / "two" / "entry.json").write_bytes(b"\xff")
    leftover = cache.root / "lowered" / f".two.{'0' * 12}"
    leftover.mkdir()
    (cache.root / "lowered" / ".git").mkdir()
    assert maintenance.clear(cache.root) == {}
    assert [path.name for path in (cache.root / "lowered").iterdir()] == [".git"]


USE = """
import sys
from isorun.system.cache import Cache
cache = Cache(sys.argv[1])
entry = cache.get("lowered", "one")
print("open", flush=True)
sys.stdin.readline()
print((entry.folder / "payload").read_text(encoding="utf-8"))
"""


def test_clear_keeps_an_entry_that_another_process_uses(cache):
    command = [sys.executable, "-c", USE, str(cache.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        left = maintenance.clear(cache.root)
        assert process.communicate("go\n", timeout=30)[0] == "0123456789" * 10 + "\n"
    assert left == {cache.root / "lowered" / "one": "it is in use"}
    assert listed(cache) == {("lowered", "one")}
    assert maintenance.clear(cache.root) == {}


def test_clear_keeps_an_entry_that_is_being_made(cache):
    def make_while_clearing(folder: Path) -> dict[str, int]:
        nonlocal left
        (cache.root / "lowered" / "one" / "payload").write_bytes(b"damaged")
        left = maintenance.clear(cache.root)
        assert folder.is_dir()
        return make(folder)

    left: dict[Path, str] = {}
    (cache.root / "lowered" / "one" / "payload").write_bytes(b"damaged")
    assert cache.get_or_make("lowered", "one", make_while_clearing).found is False
    assert left == {cache.root / "lowered" / "one": "another process is making it"}


def test_damaged_hashes_every_file_on_request(cache, monkeypatch):
    damage = cache.root / "lowered" / "one" / "payload"
    before = damage.stat()
    damage.write_bytes(b"9" * 100)
    monkeypatch.setattr(
        "isorun.system.cache.files.stamp_of", lambda status: [100, 0, 0, 0]
    )  # bit rot does not change the stamp
    steps = []
    assert set(maintenance.damaged(cache.root, full=True, progress=lambda *step: steps.append(step))) == {damage.parent}
    assert steps
    assert all(0 < done <= total for _, done, total in steps)
    assert before.st_size == damage.stat().st_size


def test_damaged_changes_nothing(cache):
    (cache.root / "lowered" / "one" / "payload").touch()
    before = {path: path.stat().st_mtime_ns for path in cache.root.rglob("*")}
    assert maintenance.damaged(cache.root, full=True) == {}
    assert {path: path.stat().st_mtime_ns for path in cache.root.rglob("*")} == before


def test_trim_removes_first_what_this_version_cannot_use(cache, monkeypatch):
    for number, key in enumerate(("old-lowering1", "new-lowering2", "one", "two")):
        if "-" in key:
            cache.get_or_make("lowered", key, make)
        os.utime(cache.root / "lowered" / key, (9 - number, 9 - number))
    cache.release()
    monkeypatch.setitem(stages.VERSIONS, "lowering", 2)
    sizes = [item.bytes for item in maintenance.survey(cache.root)]
    assert [item.key for item in maintenance.trim(cache.root, sum(sizes) - 1)[0]] == ["old-lowering1"]
    assert [item.key for item in maintenance.trim(cache.root, 0)[0]] == ["two", "one", "new-lowering2"]


def test_the_default_limit_is_said_once(cache, monkeypatch, caplog):
    monkeypatch.delenv("ISORUN_CACHE_LIMIT", raising=False)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=10_000))  # a limit of 1,000 bytes
    monkeypatch.setattr(maintenance, "_room", {})  # of the disk as it is
    for key in ("three", "four"):
        Cache(cache.root).get_or_make("lowered", key, make)
    assert [record.message for record in caplog.records if "ISORUN_CACHE_LIMIT" in record.message] == [
        f"the cache {cache.root} is limited to 0.0 GiB (at most a tenth of the disk): the least recently used entries "
        "are removed. Set ISORUN_CACHE_LIMIT to another size, such as 50GB"
    ]
    assert ("lowered", "four") in listed(cache)
    assert ("lowered", "one") not in listed(cache)


def test_the_default_limit_is_at_most_ten_gibibytes(cache, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=10**15))
    monkeypatch.setattr("isorun.system.cache.files.size_of", lambda _: 10 * 2**30)
    assert maintenance.trim(cache.root) == ([], {})
    monkeypatch.setattr("isorun.system.cache.files.size_of", lambda _: 10 * 2**30 + 1)
    assert maintenance.trim(cache.root)[0]
