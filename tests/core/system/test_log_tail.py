"""The last lines of a log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from isorun.system.log_tail import end_of


def test_keeps_the_last_lines():
    assert end_of("\n".join(map(str, range(1000)))).splitlines() == [str(number) for number in range(975, 1000)]
    assert end_of("one\ntwo\n") == "one\ntwo"


def test_keeps_the_python_traceback_of_a_crash(tmp_path):
    """Python 3.14 adds a longer C stack trace."""
    log = tmp_path / "log"
    code = "import ctypes\ndef misbehave(): ctypes.string_at(8)\nmisbehave()"
    with log.open("wb") as file:
        subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], stderr=file, check=False)
    end = end_of(log.read_text())
    assert "Segmentation fault" in end
    assert "in misbehave" in end
    assert "Binary file" not in end


def test_drops_the_c_stack_trace():
    frames = [f'  Binary file "{Path("/lib/libc.so.6")}", at abort+0x24 [0x7fe03a{number:06x}]' for number in range(40)]
    log = ["Fatal Python error: Aborted", "", "Current thread's C stack trace (most recent call first):", *frames]
    assert end_of("\n".join(log)) == "Fatal Python error: Aborted\n"
