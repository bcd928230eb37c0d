"""The GPUs of the machine, by NVIDIA's management library (``pynvml``, of the package nvidia-ml-py). Without that
package or a driver, nothing is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_MIB = 2**20
_THROTTLED = {  # NVML's nvmlClocksEventReason*
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}


@dataclass(frozen=True)
class Gpu:
    """A GPU at one moment. What the library does not report, as in some virtual machines, is ``None``."""

    name: str | None
    driver: str | None
    compute_capability: str | None
    memory_mib: int | None
    used_mib: int | None
    clock_mhz: int | None
    most_clock_mhz: int | None
    throttled_by: Sequence[str] | None


def describe() -> list[Gpu]:
    """The GPUs now."""
    return [_gpu(handle) for handle in _handles()]


def held_mib(processes: Collection[int]) -> float | None:
    """The memory on all GPUs that processes (by their ids) hold now, in MiB; ``None`` where it is unknown."""
    used = [
        process.usedGpuMemory
        for handle in _handles()
        for process in _query("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        if process.pid in processes and process.usedGpuMemory is not None
    ]
    return sum(used) / _MIB if used else None


def millijoules() -> list[int]:
    """What each GPU has used since its driver was loaded; those that do not count are left out."""
    counted = [_query("nvmlDeviceGetTotalEnergyConsumption", handle) for handle in _handles()]
    return [count for count in counted if count is not None]


def _gpu(handle: Any) -> Gpu:
    nvml = _nvml()
    compute = _query("nvmlDeviceGetCudaComputeCapability", handle)
    reasons = _query("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    memory = _query("nvmlDeviceGetMemoryInfo", handle)
    return Gpu(
        name=_text(_query("nvmlDeviceGetName", handle)),
        driver=_text(_query("nvmlSystemGetDriverVersion")),
        compute_capability=None if compute is None else "{}.{}".format(*compute),
        memory_mib=None if memory is None else memory.total // _MIB,
        used_mib=None if memory is None else memory.used // _MIB,
        clock_mhz=_query("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        most_clock_mhz=_query("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        throttled_by=None if reasons is None else [name for bit, name in _THROTTLED.items() if reasons & bit],
    )


def _query(function: str, *arguments: Any) -> Any:
    """The library's answer; ``None`` where it has none, or lacks the function."""
    nvml = _nvml()
    try:
        return getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


@cache
def _nvml() -> Any:
    """The management library, initialized until this process ends, since each time takes milliseconds; ``None`` where
    it is not available."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver
        return None
    return pynvml


def _handles() -> list[Any]:
    count = 0 if _nvml() is None else _query("nvmlDeviceGetCount") or 0
    handles = [_query("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
    return [handle for handle in handles if handle is not None]


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
