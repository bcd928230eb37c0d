"""The machine and the software that were measured: what would explain other figures elsewhere."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from isorun.errors import BackendUnavailable
from isorun.plugin import registry
from isorun.system.cgroup import cpu_quota
from isorun.system.hardware import cpu_flags, cpu_name
from isorun.system.threads import usable_cores
from isorun_matrix.measurement import gpu
from isorun_matrix.measurement.gpu import Gpu

_FLAGS = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip
_PACKAGES = ("isorun", "numpy", "onnx", "onnx-ir", "tokenizers")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


@dataclass(frozen=True)
class Cpu:
    """The processor, and its features that matter to inference (``flags``)."""

    model: str
    architecture: str
    cores: int | None
    usable_cores: int
    cgroup_quota: float | None
    flags: Sequence[str]
    governor: str | None


@dataclass(frozen=True)
class IsolatedEnvironment:
    """An isolated environment that backends run in; ``failure`` says why it is not available."""

    python: str | None = None
    install: Sequence[str] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    failure: str | None = None


@dataclass(frozen=True)
class Environment:
    """The machine and the software of a run.

    Attributes:
        load_average: when the run started.
        packages: versions by package, and of runtimes by backend.
        environments: the isolated environments that backends run in.
    """

    cpu: Cpu
    memory_mib: int
    gpus: Sequence[Gpu]
    load_average: Sequence[float]
    os: str
    kernel: str
    python: str
    packages: Mapping[str, str]
    environments: Mapping[str, IsolatedEnvironment]


def collect(backends: Iterable[str], environments: Mapping[str, IsolatedEnvironment]) -> Environment:
    """Describe this machine now, with the versions of the backends' runtimes."""
    flags = cpu_flags()
    return Environment(
        cpu=Cpu(
            model=cpu_name(),
            architecture=platform.machine(),
            cores=os.cpu_count(),
            usable_cores=usable_cores(),
            cgroup_quota=cpu_quota(),
            flags=[flag for flag in _FLAGS if flag in flags],
            governor=_GOVERNOR.read_text().strip() if _GOVERNOR.is_file() else None,
        ),
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        gpus=gpu.describe(),
        load_average=os.getloadavg(),
        os=_system(),
        kernel=platform.release(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages=_packages(backends),
        environments=environments,
    )


def _packages(backends: Iterable[str]) -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    for name in backends:
        try:
            runtime = registry.get(name).version()
        except BackendUnavailable:  # a broken plugin has no version; its cells report why
            continue
        if runtime is not None:
            versions[name] = runtime
    return versions


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()
