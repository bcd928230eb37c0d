"""The machine and the software that figures come from: what would explain that they differ elsewhere."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from isorun.errors import BackendUnavailable
from isorun.plugin import registry
from isorun.system.cgroup import cpu_quota
from isorun.system.hardware import cpu_flags, cpu_name
from isorun.system.threads import usable_cores
from isorun_matrix.measurement import gpu

_FLAGS = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip
_PACKAGES = ("isorun", "numpy", "onnx", "onnx-ir", "tokenizers")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def collect(backends: Iterable[str]) -> dict[str, Any]:
    """The processor, its features that matter to inference, the load at the moment, the system, and versions.

    Args:
        backends: names of those whose runtimes' versions are wanted.
    """
    flags = cpu_flags()
    return {
        "cpu": {
            "model": cpu_name(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "usable_cores": usable_cores(),
            "cgroup_quota": cpu_quota(),
            "flags": [flag for flag in _FLAGS if flag in flags],
            "governor": _GOVERNOR.read_text().strip() if _GOVERNOR.is_file() else None,
        },
        "memory_mib": _memory_mib(),
        "gpus": gpu.describe(),
        "load_average": list(os.getloadavg()),
        "os": _system(),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": packages(backends),
    }


def packages(backends: Iterable[str]) -> dict[str, str]:
    """The versions of isorun, of what reads models, and of the backends' runtimes (by the backend's name)."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    for name in backends:
        try:
            runtime = registry.get(name).version()
        except BackendUnavailable:  # a broken plugin has no version; its cells say what is wrong
            continue
        if runtime is not None:
            found[name] = runtime
    return found


def _memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()
