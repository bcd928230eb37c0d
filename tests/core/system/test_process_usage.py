from __future__ import annotations

import platform
import subprocess
import sys

import pytest

MEMORY = """
import numpy as np
from isorun.system import process_usage
before = process_usage.resident_mib()
block = np.ones(64 * 2**20 // 8)
print(process_usage.resident_mib() - before)
del block
print(process_usage.peak_resident_mib() - before)
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
    ran = subprocess.run([sys.executable, "-c", FAMILY], capture_output=True, text=True, check=True)
    assert 64 <= float(ran.stdout) < 150


def test_memory_of_this_process() -> None:
    ran = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    taken, peak = map(float, ran.stdout.split())
    assert taken == pytest.approx(64, abs=8)
    assert peak >= 56


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_free_memory_can_be_returned() -> None:
    ran = subprocess.run([sys.executable, "-c", FREE], capture_output=True, text=True, check=True)
    assert float(ran.stdout) > 50
