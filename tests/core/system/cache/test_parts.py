"""Entries whose parts are made one by one: the lowered forms of a model."""

import os
import subprocess
import sys

import pytest

from isorun.system.cache import Cache, maintenance


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def make_part(name):
    return lambda folder: {"bytes": (folder / name).write_bytes(name.encode() * 100)}


def test_parts_of_an_entry_are_made_one_by_one_in_one_folder(cache):
    first = cache.get_or_make("kind", "key", make_part("a"), ["one"], part="a")
    second = cache.get_or_make("kind", "key", make_part("bb"), ["two"], part="bb")
    assert (first.folder, first.meta, second.meta) == (second.folder, {"bytes": 100}, {"bytes": 200})
    again = [Cache(cache.root).get_or_make("kind", "key", make_part("unused"), part=part) for part in ("a", "bb")]
    assert [(entry.found, entry.meta) for entry in again] == [(True, first.meta), (True, second.meta)]
    assert [item.models for item in maintenance.survey(cache.root)] == [{"one", "two"}]
    assert maintenance.damaged(cache.root, full=True) == {}


def test_a_part_that_fails_leaves_no_file_and_no_other_part_damaged(cache):
    def fail(folder):
        (folder / "half").write_bytes(b"half")
        raise RuntimeError("interrupted")

    cache.get_or_make("kind", "key", make_part("a"), part="a")
    work = cache.root / "kind" / "key" / "of a maker that died"
    work.mkdir()
    (work / "half").write_bytes(b"half")
    with pytest.raises(RuntimeError, match="interrupted"):
        cache.get_or_make("kind", "key", fail, part="b")
    assert {path.name for path in (cache.root / "kind" / "key").iterdir()} == {"a", "entry.json"}
    assert Cache(cache.root).get_or_make("kind", "key", make_part("unused"), part="a").found


def test_a_damaged_part_is_made_again(cache):
    for part in ("a", "b"):
        cache.get_or_make("kind", "key", make_part(part), part=part)
    (cache.root / "kind" / "key" / "a").write_bytes(b"damaged")
    for part in ("b", "a"):
        entry = Cache(cache.root).get_or_make("kind", "key", make_part(part), part=part)
        assert (entry.folder / part).read_bytes() == part.encode() * 100


def test_parts_of_a_private_entry_are_private(cache):
    umask = os.umask(0o022)
    try:
        for part in ("a", "b"):
            cache.get_or_make("kind", "key", make_part(part), part=part, private=True)
    finally:
        os.umask(umask)
    folder = cache.root / "kind" / "key"
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
        ("a", "b", "entry.json"), 0o600
    )
    assert folder.stat().st_mode & 0o777 == 0o700


def test_parts_made_by_several_processes_are_all_kept(cache):
    program = (
        "import sys\nfrom isorun.system.cache import Cache\n"
        "for n in range(5):\n"
        "    name = f'{sys.argv[2]}-{n}'\n"
        "    Cache(sys.argv[1]).get_or_make('kind', 'key', lambda f: {'n': (f / name).write_text(name)}, part=name)\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(cache.root), str(n)]) for n in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    for process in range(3):
        for number in range(5):
            assert Cache(cache.root).get_or_make("kind", "key", make_part("unused"), part=f"{process}-{number}").found
