from __future__ import annotations

import platform
from pathlib import Path

import pytest

from isorun.system import hardware


def test_cpu_name():
    assert hardware.cpu_name()


@pytest.mark.skipif(not Path("/proc/cpuinfo").is_file(), reason="the system has no /proc/cpuinfo")
def test_cpu_flags():
    text = Path("/proc/cpuinfo").read_text()
    assert all(flag in text for flag in hardware.cpu_flags())
    if platform.machine() == "x86_64":
        assert "sse2" in hardware.cpu_flags()
