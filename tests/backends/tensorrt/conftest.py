"""The tensorrt backend on a fake of TensorRT's API. These tests do not show anything about TensorRT itself.

With ``ISORUN_TENSORRT=FOLDER``, NVIDIA's own Python bindings from that folder are used, over libraries that forward
every call to the same fake: tests/backends/test_tensorrt_bindings.py.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

import fake_device_memory
import fake_nvinfer
import fake_tensorrt
from isorun.types import Availability
from isorun_backends.nvidia.cuda_driver import Driver, Gpu
from isorun_backends.tensorrt import device_memory
from isorun_backends.tensorrt.backend import TensorRT


@pytest.fixture
def memory():
    if os.environ.get("ISORUN_TENSORRT_MEMORY") == "pycuda":
        return fake_device_memory.watched(device_memory.PycudaMemory)(0)
    return fake_device_memory.HostMemory()


@pytest.fixture(scope="session")
def trt(tmp_path_factory):
    """The fake, or NVIDIA's bindings over it."""
    folder = os.environ.get("ISORUN_TENSORRT")
    return fake_nvinfer.bindings(Path(folder), tmp_path_factory.mktemp("nvinfer")) if folder else fake_tensorrt


@pytest.fixture
def installed(monkeypatch, memory, trt):
    """TensorRT and a GPU appear to be present."""
    fake_tensorrt.forget()
    fake_nvinfer.faults.clear()
    driver = Driver("13.0", (Gpu("A GPU", "9.0", 1 << 30),), "")
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.driver", lambda: driver)
    monkeypatch.setattr(device_memory, "open_memory", lambda name, index: memory)
    monkeypatch.setattr(TensorRT, "availability", lambda self: Availability(True))
    yield
    gc.collect()
    assert fake_nvinfer.faults == []


@pytest.fixture
def graphs(monkeypatch):
    """The fake CUDA graphs that were recorded."""
    recorded = []

    def capture(name, stream, work):
        recorded.append(fake_tensorrt.capture(name, stream, work))
        return recorded[-1]

    monkeypatch.setattr(device_memory, "capture", capture)
    return recorded
