"""The name and features of the processor."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    first = path.read_text().partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cpu_name() -> str:
    """The processor's name as the system reports it."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """The processor's features by their Linux names, such as ``avx512_bf16``; empty on other systems."""
    known = _cpuinfo()
    return frozenset(known.get("flags", known.get("Features", "")).split())
