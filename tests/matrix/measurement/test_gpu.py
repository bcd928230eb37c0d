"""What is told of GPUs, by a stand-in for pynvml, and nothing where there is none."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from isorun_matrix.measurement import gpu
from isorun_matrix.measurement import machine as environment
from isorun_matrix.spec import reader as specfile


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    mib = 2**20
    processes = [
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=512 * mib),
        SimpleNamespace(pid=1, usedGpuMemory=4096 * mib),
    ]
    made = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVMLError=NVMLError,
        opened=[],
        nvmlInit=lambda: made.opened.append(1),
        nvmlShutdown=lambda: made.opened.pop(),
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
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_a_gpu_is_described(nvml):
    assert gpu.describe() == [
        {
            "name": "A GPU",
            "driver": "580.1",
            "compute_capability": "9.0",
            "memory_mib": 1000,
            "used_mib": 700,
            "clock_mhz": 1200,
            "most_clock_mhz": 1980,
            "throttled_by": ["power cap"],
        }
    ]
    assert gpu.held_mib([os.getpid()]) == 512
    assert gpu.held_mib([os.getpid(), 1, 2]) == 4608
    assert nvml.opened == [], "it is closed again"


def test_a_process_without_memory_there_has_none(nvml):
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda handle: []
    assert gpu.held_mib([os.getpid()]) is None


def test_what_is_not_told_is_none(nvml):
    """As in a virtual machine."""

    def refuse(*_):
        raise NVMLError("not supported")

    for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetClockInfo", "nvmlDeviceGetComputeRunningProcesses"):
        setattr(nvml, name, refuse)
    del nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    (found,) = gpu.describe()
    unknown = {"memory_mib", "used_mib", "clock_mhz", "throttled_by"}
    assert {name for name, value in found.items() if value is None} == unknown
    assert gpu.held_mib([os.getpid()]) is None


def test_without_a_driver_there_is_nothing_to_tell(nvml):
    def refuse():
        raise NVMLError("driver not loaded")

    nvml.nvmlInit = refuse
    assert gpu.describe() == []
    assert gpu.held_mib([os.getpid()]) is None


def test_without_pynvml_there_is_nothing_to_tell(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu.describe() == []
    assert environment.collect([])["gpus"] == []


def test_the_environment_has_the_gpus(nvml):
    assert environment.collect([])["gpus"][0]["name"] == "A GPU"


def test_the_spec_that_is_shipped_is_sound():
    from pathlib import Path

    spec = specfile.load(Path(__file__).parents[3] / "matrix" / "gpu.yaml")
    assert set(spec.models) == {"bert-3l", "bert-base", "bert-large"}
    assert {entry.name: entry.precisions for entry in spec.backends} == {
        "ort-cuda": ["fp32", "fp16"],
        "tensorrt": ["fp32", "fp16"],
        "ort-tensorrt": ["fp16"],
    }
    assert [shape.name for shape in spec.shapes_of("bert-large")] == ["1x128", "8x128", "32x128", "1x384"]
