"""Waiting for other processes."""

import logging
import subprocess
import sys
import threading

import pytest

from isolation import wait_until
from isorun.system.cache import Cache, locks

HOLD = """
import sys, time
from isorun.system.cache import Cache

def make(folder):
    print("making", flush=True)
    sys.stdin.readline()
    (folder / "payload").write_text("theirs")
    return {}

Cache(sys.argv[1]).get_or_make("kind", "key", make)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that makes an entry and finishes when it reads a line."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "cache")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "making\n"
        yield process
        process.kill()


def test_a_long_wait_is_logged(tmp_path, holder, monkeypatch, caplog):
    monkeypatch.setattr(locks, "_SILENT_SECONDS", 0.1)
    entries = []
    waiting = threading.Thread(
        target=lambda: entries.append(Cache(tmp_path / "cache").get_or_make("kind", "key", lambda _: {}))
    )
    with caplog.at_level(logging.WARNING, "isorun"):
        waiting.start()
        assert wait_until(lambda: bool(caplog.records))
        holder.communicate("go\n", timeout=30)
        waiting.join(30)
    (record,) = caplog.records
    assert "kind/key" in record.getMessage()
    assert (entries[0].folder / "payload").read_text(encoding="utf-8") == "theirs"


def test_file_system_without_locks_can_be_read(tmp_path, monkeypatch):
    import fcntl

    def unsupported(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    locks.InUse(tmp_path)
    with pytest.raises(OSError, match="not implemented"):
        locks.InUse(tmp_path, alone=True)
