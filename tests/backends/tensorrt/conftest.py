"""TensorRT's backend on a fake of its API. Nothing here says anything about TensorRT itself.

With ``ISORUN_TENSORRT=FOLDER`` NVIDIA's own Python bindings of that folder are between, over libraries that hand every
call to the same fake: tests/backends/test_tensorrt_bindings.py.
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
from isorun_backends import tensorrt
from isorun_backends.cuda_driver import Driver, Gpu
from isorun_backends.tensorrt import memory


@pytest.fixture
def held():
    if os.environ.get("ISORUN_TENSORRT_MEMORY") == "pycuda":
        return fake_device_memory.watched(memory.PycudaMemory)(0)
    return fake_device_memory.HostMemory()


@pytest.fixture(scope="session")
def trt(tmp_path_factory):
    """The fake, or NVIDIA's bindings over it."""
    folder = os.environ.get("ISORUN_TENSORRT")
    return fake_nvinfer.bindings(Path(folder), tmp_path_factory.mktemp("nvinfer")) if folder else fake_tensorrt


@pytest.fixture(autouse=True)
def here(monkeypatch, held, trt):
    """TensorRT and a GPU seem to be here."""
    fake_tensorrt.forget()
    fake_nvinfer.faults.clear()
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    monkeypatch.setattr(tensorrt, "driver", lambda: Driver("13.0", (Gpu("A GPU", "9.0", 1 << 30),), ""))
    monkeypatch.setattr(memory, "open_memory", lambda name, number: held)
    monkeypatch.setattr(tensorrt.TensorRT, "availability", lambda self: Availability(True))
    yield
    gc.collect()
    assert fake_nvinfer.faults == []


@pytest.fixture
def graphs(monkeypatch):
    """CUDA graphs, played: how many were recorded."""
    recorded = []

    def capture(name, stream, work):
        recorded.append(fake_tensorrt.capture(name, stream, work))
        return recorded[-1]

    monkeypatch.setattr(memory, "capture", capture)
    return recorded
