"""Answers for systems that lack what Linux has, on Linux."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isorun.system import portable
from isorun.system.subprocesses import Child, python_module


@pytest.mark.parametrize("memory", [True, False])
def test_anonymous_files_append_and_are_not_inherited(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not memory:
        monkeypatch.delattr(os, "memfd_create")
    descriptor = portable.anonymous_file("isorun-test")
    try:
        os.write(descriptor, b"one ")
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, b"two")
        assert portable.read_at(descriptor, 100, 0) == b"one two"
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_reading_without_pread_keeps_the_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pread")
    (tmp_path / "file").write_bytes(b"0123456789")
    with (tmp_path / "file").open("r+b", buffering=0) as file:
        file.seek(7)
        assert portable.read_at(file.fileno(), 3, 2) == b"234"
        assert file.read() == b"789"


def test_a_lock_is_held_until_the_file_is_closed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    first, second = (os.open(tmp_path / "file", os.O_RDWR | portable.NO_LINK) for _ in range(2))
    try:
        portable.lock(first, wait=False)
        with pytest.raises(BlockingIOError):
            portable.lock(second, wait=False)
        os.close(first)
        portable.lock(second, wait=True)
    finally:
        os.close(second)


def test_files_of_a_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic link"):
        os.open(tmp_path / "link", os.O_RDWR | os.O_CREAT | portable.NO_LINK)


def test_children_are_reaped_without_waitid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "waitid")
    with Child([sys.executable, "-c", "raise SystemExit(3)"]) as child:
        assert child.wait(30).code == 3  # type: ignore[union-attr]


def test_a_channel_carries_lines_and_not_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import subprocess, sys
from isorun.system.channels import Parent
parent = Parent()
print("printed", flush=True)
subprocess.run(["echo", "of a child"])
parent.send(parent.receive().upper())
assert sys.stdin.read() == ""
"""
    (tmp_path / "a_module.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Child(python_module("a_module"), channel=True) as child:
        assert child.channel is not None
        with pytest.raises(TimeoutError):
            child.channel.receive(0.01)
        child.channel.send("ähnlich")
        assert child.channel.receive(30) == "ÄHNLICH"
        assert child.channel.receive(30) == ""
        assert child.wait().log == "printed\nof a child"
        with pytest.raises(OSError, match="pipe"):
            child.channel.send("too late")


def test_a_child_that_hangs_up_is_seen(tmp_path: Path) -> None:
    with Child([sys.executable, "-c", "import os, time; os.close(1); time.sleep(60)"], channel=True) as child:
        assert child.channel is not None
        assert child.channel.receive(30) == ""


def test_only_the_portable_module_asks_the_system() -> None:
    """What Windows or macOS lack is looked up in ``isorun.system`` alone."""
    names = r"fcntl|memfd_create|sched_getaffinity|killpg|register_at_fork|geteuid\(\)\)|getloadavg|os\.nice|waitid"
    root = Path(__file__).parents[3]
    command = ["git", "grep", "-lE", names, "--", "core", "matrix"]
    paths = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout.split()
    assert {path for path in paths if path.endswith(".py") and "/system/" not in path} == set()
