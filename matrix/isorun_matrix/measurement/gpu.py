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
    """Name, driver, memory, clocks and what throttles them, of each GPU at the moment. What the library does not tell,
    as in some virtual machines, is ``None``."""
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
            for each in _told(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
            if each.pid in processes and each.usedGpuMemory is not None
        ]
    return sum(used) / _MIB if used else None


def _one(nvml: Any, handle: Any) -> dict[str, Any]:
    compute = _told(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    reasons = _told(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    memory = _told(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return {
        "name": _text(_told(nvml, "nvmlDeviceGetName", handle)),
        "driver": _text(_told(nvml, "nvmlSystemGetDriverVersion")),
        "compute_capability": None if compute is None else "{}.{}".format(*compute),
        "memory_mib": None if memory is None else memory.total // _MIB,
        "used_mib": None if memory is None else memory.used // _MIB,
        "clock_mhz": _told(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        "most_clock_mhz": _told(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        "throttled_by": None if reasons is None else [name for bit, name in _THROTTLED.items() if reasons & bit],
    }


def _told(nvml: Any, ask: str, *arguments: Any) -> Any:
    """What the library says; ``None`` where it does not know, or knows no such question."""
    try:
        return getattr(nvml, ask)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


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
    found = [
        _told(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(_told(nvml, "nvmlDeviceGetCount") or 0)
    ]
    return [handle for handle in found if handle is not None]


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
