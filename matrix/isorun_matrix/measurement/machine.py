"""The machine and the software that were measured: what would explain other figures elsewhere.

:func:`identity` is what belongs to the key of a result: a run never mixes results of two machines, or of one machine
with two settings.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from isorun.errors import BackendUnavailable
from isorun.plugin import listing, registry
from isorun.system import portable
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
_MACHINE_ID = Path("/etc/machine-id")
_DMI = Path("/sys/class/dmi/id")
_VARIABLES = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ORT_", "OV_", "TBB_", "MALLOC_",
    "GLIBC_TUNABLES", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip


@dataclass(frozen=True)
class Cpu:
    """The processor, its features that matter to inference (``flags``), and the cores that this process may use, such
    as ``0-3,8`` (``affinity``)."""

    model: str
    architecture: str
    cores: int | None
    usable_cores: int
    affinity: str
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
        host: a digest of the machine's id.
        virtualization: the virtual machine or container that it is; ``None`` if none is known.
        nice: the priority of this process.
        variables: environment variables that runtimes and their thread pools read.
        load_average: when the run started.
        packages: versions by package, and of runtimes by backend.
        environments: the isolated environments that backends run in.
    """

    host: str
    virtualization: str | None
    nice: int | None
    variables: Mapping[str, str]
    cpu: Cpu
    memory_mib: int | None
    gpus: Sequence[Gpu]
    load_average: Sequence[float] | None
    os: str
    kernel: str
    python: str
    packages: Mapping[str, str]
    environments: Mapping[str, IsolatedEnvironment]


def collect(backends: Iterable[str], environments: Mapping[str, IsolatedEnvironment]) -> Environment:
    """Describe this machine now, with the versions of the backends' runtimes."""
    flags, cores, memory = cpu_flags(), portable.cores(), portable.memory_bytes()
    return Environment(
        host=_host(),
        virtualization=_virtualization(),
        nice=portable.niceness(),
        variables={name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)},
        cpu=Cpu(
            model=cpu_name(),
            architecture=platform.machine(),
            cores=os.cpu_count(),
            usable_cores=usable_cores(),
            affinity="all" if cores is None else _ranges(sorted(cores)),
            cgroup_quota=cpu_quota(),
            flags=[flag for flag in _FLAGS if flag in flags],
            governor=_first_line(_GOVERNOR) or None,
        ),
        memory_mib=None if memory is None else memory // 2**20,
        gpus=gpu.describe(),
        load_average=portable.load_average(),
        os=_system(),
        kernel=platform.release(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages=_packages(backends),
        environments=environments,
    )


def identity(environment: Environment) -> dict[str, Any]:
    """What of the machine decides results, as plain data."""
    document = {
        name: getattr(environment, name) for name in ("host", "virtualization", "nice", "variables", "memory_mib")
    }
    gpus = [[gpu.name, gpu.driver, gpu.memory_mib] for gpu in environment.gpus]
    return {**document, "cpu": asdict(environment.cpu), "gpus": gpus}


def _host() -> str:
    return hashlib.sha256(f"{_first_line(_MACHINE_ID)}/{platform.node()}".encode()).hexdigest()[:12]


def _virtualization() -> str | None:
    container = "container" if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() else None
    vendor, product = (_first_line(_DMI / name) for name in ("sys_vendor", "product_name"))
    names = " ".join(filter(None, [vendor, product])) or "virtual machine"
    virtual = names if "hypervisor" in cpu_flags() else None
    return ", ".join(filter(None, [virtual, container])) or None


def _first_line(path: Path) -> str:
    """The first line of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip().partition("\n")[0]
    except OSError:
        return ""


def _ranges(cores: Sequence[int]) -> str:
    """Ascending numbers as ranges: 0-3,8."""
    ranges: list[list[int]] = []
    for core in cores:
        if ranges and core == ranges[-1][-1] + 1:
            ranges[-1][1:] = [core]
        else:
            ranges.append([core])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def _packages(backends: Iterable[str]) -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    for name in backends:
        try:
            runtime = registry.version(listing.load(name))
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
