"""The name and features of the processor, and the files of other devices."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

DEVICE_FILES = {"cuda": ("/dev/nvidia",), "gpu": ("/dev/nvidia", "/dev/dri/", "/dev/kfd"), "npu": ("/dev/accel",)}
"""What the names of files start with that a process has open if it uses a device, by the kind of the device."""
_VNNI = ("avx512_vnni", "avx_vnni", "amx_int8")


@cache
def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    first = path.read_text(encoding="utf-8").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cpu_name() -> str:
    """The processor's name as the system reports it."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """The processor's features by their Linux names, such as ``avx512_bf16``; empty on other systems."""
    known = _cpuinfo()
    return frozenset(known.get("flags", known.get("Features", "")).split())


def has_vnni() -> bool:
    """Whether the processor is known to add 8-bit products in 32 bits; others of x86 add two in 16, which saturates."""
    return bool(cpu_flags().intersection(_VNNI))
