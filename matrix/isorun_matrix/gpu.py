"""The GPUs that figures come from, as NVIDIA's management library tells it: where ``pynvml`` (the package nvidia-ml-py)
is not installed, or there is no driver, there is nothing to tell.

Not run on hardware yet: the calls were checked with a stand-in for pynvml.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

_MIB = 2**20
_THROTTLED = {  # NVML's nvmlClocksEventReason*
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, by software",
    0x40: "thermal, by hardware",
    0x80: "power brake",
}


def describe() -> list[dict[str, Any]]:
    """Name, driver, memory, clocks and what throttles them, of each GPU at the moment."""
    with _nvml() as nvml:
        return [] if nvml is None else [_one(nvml, handle) for handle in _handles(nvml)]


def held_mib(processes: Collection[int]) -> float | None:
    """The memory on all GPUs that processes (by their ids) hold now, in MiB; ``None`` where nothing tells."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        used = [
            each.usedGpuMemory
            for handle in _handles(nvml)
            for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            if each.pid in processes and each.usedGpuMemory is not None
        ]
    return sum(used) / _MIB if used else None


def _one(nvml: Any, handle: Any) -> dict[str, Any]:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "driver": _text(nvml.nvmlSystemGetDriverVersion()),
        "compute_capability": f"{major}.{minor}",
        "memory_mib": nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB,
        "used_mib": nvml.nvmlDeviceGetMemoryInfo(handle).used // _MIB,
        "clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "most_clock_mhz": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "throttled_by": [name for bit, name in _THROTTLED.items() if reasons & bit],
    }


@contextmanager
def _nvml() -> Iterator[Any]:
    """The management library, open; ``None`` where it is not to be had."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
