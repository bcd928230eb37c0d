"""The end of what a process printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from isorun.system.log_tail import end_of, end_of_file


def test_the_last_lines_are_kept():
    assert end_of("\n".join(map(str, range(1000)))).splitlines() == [str(number) for number in range(975, 1000)]


def test_a_short_log_is_kept_whole():
    assert end_of("one\ntwo\n") == "one\ntwo"
    assert end_of("") == ""


def test_a_log_of_any_length_and_bytes(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\xff" * 10_000_000 + b"\nlast\n")
    assert end_of_file(path).endswith("\nlast")
    assert len(end_of_file(path)) < 20_000


def test_a_crash_leaves_its_reason_and_where_it_was_in_python(tmp_path):
    """From Python 3.14 on with C's frames below, more of them than lines are kept."""
    log = tmp_path / "log"
    code = "import ctypes\ndef misbehave(): ctypes.string_at(8)\nmisbehave()"
    with log.open("wb") as file:
        subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], stderr=file, check=False)
    end = end_of_file(log)
    assert "Segmentation fault" in end
    assert "in misbehave" in end
    assert "Binary file" not in end


def test_frames_of_c_are_left_out():
    frames = [f'  Binary file "{Path("/lib/libc.so.6")}", at abort+0x24 [0x7fe03a{number:06x}]' for number in range(40)]
    log = ["Fatal Python error: Aborted", "", "Current thread's C stack trace (most recent call first):", *frames]
    assert end_of("\n".join(log)) == "Fatal Python error: Aborted\n"
