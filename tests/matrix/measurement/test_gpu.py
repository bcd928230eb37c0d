"""GPUs as a replacement for pynvml reports them, and machines without any."""

import functools
import os
import sys
from types import SimpleNamespace

import pytest

from isorun_matrix.measurement import gpu, machine


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setattr(gpu, "_nvml", functools.cache(gpu._nvml.__wrapped__))
    mib = 2**20
    processes = [
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=512 * mib),
        SimpleNamespace(pid=1, usedGpuMemory=4096 * mib),
    ]
    library = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVMLError=NVMLError,
        opened=[],
        nvmlInit=lambda: library.opened.append(1),
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: b"A GPU",
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetCudaComputeCapability=lambda handle: (9, 0),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=1000 * mib, used=700 * mib),
        nvmlDeviceGetClockInfo=lambda handle, kind: 1200,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x4 | 0x1,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: processes,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def test_a_gpu_is_described(nvml):
    expected = gpu.Gpu("A GPU", "580.1", "9.0", 1000, 700, 1200, 1980, ["power cap"])
    assert gpu.describe() == machine.collect([], {}).gpus == [expected]
    assert gpu.held_mib([os.getpid()]) == 512
    assert gpu.held_mib([os.getpid(), 1, 2]) == 4608
    assert nvml.opened == [1]


def test_a_process_without_gpu_memory(nvml):
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: []
    assert gpu.held_mib([os.getpid()]) is None


def test_unknown_values_are_none(nvml):
    """As in a virtual machine."""

    def refuse(*_):
        raise NVMLError("not supported")

    for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetClockInfo", "nvmlDeviceGetComputeRunningProcesses"):
        setattr(nvml, name, refuse)
    del nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    (gpu_info,) = gpu.describe()
    unknown = {"memory_mib", "used_mib", "clock_mhz", "throttled_by"}
    assert {name for name, value in vars(gpu_info).items() if value is None} == unknown
    assert gpu.held_mib([os.getpid()]) is None


@pytest.mark.parametrize("lacking", ["the driver", "pynvml"])
def test_without_a_driver_or_pynvml_there_is_no_gpu(nvml, monkeypatch, lacking):
    def refuse():
        raise NVMLError("driver not loaded")

    nvml.nvmlInit = refuse
    if lacking == "pynvml":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu.describe() == machine.collect([], {}).gpus == []
    assert gpu.held_mib([os.getpid()]) is None
