import platform
from pathlib import Path

import pytest

import programs

MEMORY = """
import numpy as np
from isorun.system import process_usage
before = process_usage.resident_mib()
block = np.ones(64 * 2**20 // 8)
print(process_usage.resident_mib() - before)
del block
print(process_usage.peak_resident_mib() - before)
"""

MAPPED = """
import sys
import numpy as np
from isorun.system import process_usage
np.full(64 * 2**20, 1, np.uint8).tofile(sys.argv[1])
before = process_usage.resident_mib(), process_usage.anonymous_mib()
mapped = np.memmap(sys.argv[1], np.uint8, "r")
total = int(mapped.sum())
print(process_usage.resident_mib() - before[0], process_usage.anonymous_mib() - before[1])
block = np.ones(64 * 2**20 // 8)
print(process_usage.anonymous_mib() - before[1])
"""

FREE = """
import numpy as np
from isorun.system import process_usage
blocks = [np.ones(2**13) for _ in range(1000)]
del blocks[:-1]
kept = process_usage.resident_mib()
process_usage.return_free_memory()
print(kept - process_usage.resident_mib())
"""

FAMILY = """
import os, subprocess, sys
from isorun.system import process_usage
alone = process_usage.peak_resident_mib()
assert process_usage.family() == [os.getpid()]
say = "import sys; block = b'x' * (64 * 2**20); print('ready', flush=True); sys.stdin.read()"
with subprocess.Popen([sys.executable, "-c", say], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    child.stdout.readline()
    assert process_usage.family() == [os.getpid(), child.pid]
    print(process_usage.peak_resident_mib() - alone)
"""


def test_memory_includes_descendants() -> None:
    assert 64 <= float(programs.printed(FAMILY)) < 150


def test_memory_of_this_process() -> None:
    taken, peak = map(float, programs.printed(MEMORY).split())
    assert taken == pytest.approx(64, abs=8)
    assert peak >= 56


def test_mapped_files_are_no_anonymous_memory(tmp_path: Path) -> None:
    resident, anonymous, grown = map(float, programs.printed(MAPPED, tmp_path / "file").split())
    assert resident == pytest.approx(64, abs=8)
    assert anonymous < 8
    assert grown == pytest.approx(64, abs=8)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_free_memory_can_be_returned() -> None:
    assert float(programs.printed(FREE)) > 50
