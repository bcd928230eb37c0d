"""The tensorrt backend on a fake of TensorRT's API. These tests do not show anything about TensorRT itself."""

import sys

import pytest

import fake_device_memory
import fake_tensorrt
from isorun.types import Availability
from isorun_backends.nvidia import device_memory
from isorun_backends.nvidia.cuda_driver import Driver, Gpu
from isorun_backends.tensorrt import cuda_graph
from isorun_backends.tensorrt.backend import TensorRT


@pytest.fixture
def memory():
    return fake_device_memory.HostMemory()


@pytest.fixture
def installed(monkeypatch, memory):
    """TensorRT and a GPU appear to be present."""
    fake_tensorrt.forget()
    driver = Driver("13.0", (Gpu("A GPU", "9.0", 1 << 30),), "")
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt)
    monkeypatch.setattr("isorun_backends.nvidia.cuda_driver.driver", lambda: driver)
    monkeypatch.setattr(device_memory, "open_memory", lambda name, index: memory)
    monkeypatch.setattr(TensorRT, "availability", lambda self: Availability(True))


@pytest.fixture
def graphs(monkeypatch):
    """The fake CUDA graphs that were recorded."""
    recorded = []

    def capture(name, stream, work):
        recorded.append(fake_tensorrt.capture(work))
        return recorded[-1]

    monkeypatch.setattr(cuda_graph, "require", lambda name: None)
    monkeypatch.setattr(cuda_graph, "capture", capture)
    return recorded
