"""Files of vectors that are written in parts: damaged parts start again, full disks are errors."""

import errno
import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from isorun.cli.vectors_file import VectorsFile
from isorun.errors import IsorunError
from isorun.system import portable

SHAPE = (5, 3)
ROWS = np.arange(15, dtype=np.float32).reshape(SHAPE)


def interrupted(output: Path, key: str = "key") -> None:
    """Save two lines."""
    file = VectorsFile(output, SHAPE, key)
    file.add(ROWS[:2])
    file.__exit__(KeyboardInterrupt)


def finish(output: Path, key: str = "key") -> int:
    """Write the remaining lines; return how many were saved already."""
    with VectorsFile(output, SHAPE, key) as file:
        saved = file.done
        file.add(ROWS[saved:])
    np.testing.assert_array_equal(np.load(output), ROWS)
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    return saved


def test_continues_after_an_interruption(tmp_path: Path) -> None:
    interrupted(tmp_path / "v.npy")
    assert finish(tmp_path / "v.npy") == 2


def test_starts_again_with_another_key(tmp_path: Path) -> None:
    interrupted(tmp_path / "v.npy", "another")
    assert finish(tmp_path / "v.npy") == 0


@pytest.mark.parametrize("lines", [0, 1])
def test_is_an_array_that_numpy_reads(tmp_path: Path, lines: int) -> None:
    with VectorsFile(tmp_path / "v.npy", (lines, 3), "key") as file:
        file.add(ROWS[:lines])
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), ROWS[:lines])


PROGRESS = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b"1" * 10_000,
    b"null",
    b"[]",
    b"{}",
    b'{"key": "key"}',
    *(
        json.dumps({"key": "key", "done": done}).encode()
        for done in (None, "2", 2.0, True, -1, 0, 6, 10**30, [2], {"2": 2}, float("nan"), float("inf"))
    ),
    json.dumps({"key": ["key"], "done": 2}).encode(),
]


@pytest.mark.parametrize("content", PROGRESS, ids=range(len(PROGRESS)))
def test_starts_again_if_the_progress_is_damaged(tmp_path: Path, content: bytes) -> None:
    output = tmp_path / "v.npy"
    interrupted(output)
    (tmp_path / "v.npy.progress").write_bytes(content)
    assert finish(output) == 0


@pytest.mark.parametrize("seed", range(20))
def test_starts_again_if_the_part_is_damaged(tmp_path: Path, seed: int) -> None:
    output, part = tmp_path / "v.npy", tmp_path / "v.npy.part"
    interrupted(output)
    random = np.random.default_rng(seed)
    size = part.stat().st_size
    if seed % 2:
        os.truncate(part, int(random.integers(size)))
    else:
        part.write_bytes(random.bytes(int(random.integers(2 * size))))
    assert finish(output) == 0


def test_starts_again_if_the_part_is_missing(tmp_path: Path) -> None:
    interrupted(tmp_path / "v.npy")
    (tmp_path / "v.npy.part").unlink()
    assert finish(tmp_path / "v.npy") == 0


@pytest.mark.parametrize("ending", ["part", "progress"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_names_what_is_in_the_way(tmp_path: Path, ending: str, kind: str) -> None:
    output, path = tmp_path / "v.npy", tmp_path / f"v.npy.{ending}"
    interrupted(output)
    path.unlink()
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to("missing")}[kind]()
    if ending == "progress" and kind != "folder":
        assert finish(output) == 0
        return
    with pytest.raises(IsorunError, match="in the way"):
        VectorsFile(output, SHAPE, "key")
    shutil.rmtree(path) if kind == "folder" else path.unlink(missing_ok=True)
    assert finish(output) == 0


def test_a_full_disk_is_an_error_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(IsorunError, match=r"No space left on device.* need 188 bytes .*Free space"):
            VectorsFile(tmp_path / "v.npy", SHAPE, "key")
    assert not list(tmp_path.iterdir())
    assert finish(tmp_path / "v.npy") == 0


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of this process can have 100 bytes."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_files")
def test_a_limit_of_sizes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsorunError, match=r"File too large"):
        VectorsFile(tmp_path / "v.npy", SHAPE, "key")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_later_keeps_what_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = tmp_path / "v.npy"
    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    file = VectorsFile(output, SHAPE, "key")
    file.add(ROWS[:2])
    with monkeypatch.context() as patched:
        patched.setattr(portable, "write_at", full)
        with pytest.raises(IsorunError, match="No space left"):
            file.add(ROWS[2:])
    file.__exit__(IsorunError)
    assert finish(output) == 2


def test_rejects_more_rows_than_lines(tmp_path: Path) -> None:
    with pytest.raises(IsorunError, match="more than 5 lines"), VectorsFile(tmp_path / "v.npy", SHAPE, "key") as file:
        file.add(np.zeros((6, 3), np.float32))
