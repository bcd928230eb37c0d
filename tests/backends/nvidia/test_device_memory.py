"""Device memory on a fake of pycuda, which checks the current context and what is released. It follows pycuda's source;
these tests do not show anything about CUDA itself."""

import gc
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from isorun.errors import BackendUnavailable
from isorun_backends.nvidia import device_memory


class Resource:
    """What pycuda allocates: released only in its context."""

    handle = 7  # of a stream

    def __init__(self, driver, kind):
        assert driver.depth, "out of its context"
        self.driver, self.kind = driver, kind

    def __int__(self):
        return 4096

    def __del__(self):
        self.driver.released.append(self.kind if self.driver.depth else f"leaked {self.kind}")

    def record(self, stream=None):
        self.driver.calls.append("record")
        return self

    def synchronize(self):
        self.driver.calls.append(f"wait for {self.kind}")

    def time_till(self, end):
        return 1.5


class PinnedArray(np.ndarray):
    """An array with a resource."""


class Pycuda:
    """``pycuda.driver`` with one context."""

    def __init__(self):
        self.released, self.calls = [], []
        self._here = threading.local()
        self.init = lambda: None
        self.Device = lambda number: SimpleNamespace(retain_primary_context=lambda: self)
        self.Stream = lambda flags: Resource(self, f"stream {flags}")
        self.mem_alloc = lambda nbytes: Resource(self, f"{nbytes} bytes")
        self.Event = lambda: Resource(self, "event")
        self.Context = SimpleNamespace(synchronize=lambda: self.calls.append("wait for all"))

    depth = property(lambda self: getattr(self._here, "depth", 0))

    def push(self):
        self._here.depth = self.depth + 1

    def pop(self):
        self._here.depth -= 1

    def pagelocked_empty(self, size, dtype):
        array = np.empty(size, dtype).view(PinnedArray)
        array.resource = Resource(self, f"{size} pinned bytes")
        return array


@pytest.fixture
def pycuda(monkeypatch):
    driver, package = Pycuda(), ModuleType("pycuda")
    package.driver = driver
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", driver)
    monkeypatch.setattr(device_memory, "is_installed", lambda: True)
    return driver


def test_everything_is_released_on_any_thread(pycuda):
    memory = device_memory.open_memory("tensorrt", 0)
    with memory.current():
        assert memory.stream() == 7
        host = memory.pinned((2, 3), np.dtype(np.float32))
        held = [memory, memory.allocate(8), host[1:]]
    del memory, host
    gc.collect()
    assert pycuda.released == [], "a part of the pinned memory is still in use"

    def work():
        held.clear()
        gc.collect()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert sorted(pycuda.released) == ["24 pinned bytes", "8 bytes", "stream 1"]
    assert pycuda.depth == 0


def test_pinned_arrays_are_ordinary_arrays(pycuda):
    memory = device_memory.DeviceMemory(0)
    with memory.current():
        for shape in ((2, 3), (0, 3), ()):
            array = memory.pinned(shape, np.dtype(np.int64))
            array[...] = 1
            assert (array.shape, array.dtype, array.flags.c_contiguous) == (shape, np.int64, True)


def test_waits_for_other_libraries_streams(pycuda):
    memory = device_memory.DeviceMemory(0)
    with memory.current():
        memory.wait_for(1)
        memory.wait_for(4711)
    assert pycuda.calls == ["record", "wait for event", "wait for all"]


def test_times_are_those_between_events(pycuda):
    memory = device_memory.DeviceMemory(0)
    with memory.current():
        stream = memory.stream()
        assert memory.times(stream, lambda: pycuda.calls.append("work"), 2).tolist() == [1.5] * 2
    assert pycuda.calls == ["record", "work", "record", "wait for event"] * 2


def test_names_what_pycuda_needs(monkeypatch):
    monkeypatch.setattr(device_memory, "is_installed", lambda: False)
    with pytest.raises(BackendUnavailable, match=r"C\+\+ compiler.*nvcc"):
        device_memory.open_memory("tensorrt", 0)
    monkeypatch.setattr(device_memory, "is_installed", lambda: True)
    monkeypatch.setitem(sys.modules, "pycuda", None)
    with pytest.raises(BackendUnavailable, match=r"does not import.*libcuda"):
        device_memory.open_memory("tensorrt", 0)
