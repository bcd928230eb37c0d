"""Device memory on fakes of pycuda and cuda-bindings, which check the current context and what is released. The fakes
follow the real signatures; these tests do not show anything about CUDA itself."""

from __future__ import annotations

import gc
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from isorun.errors import BackendFailed, BackendUnavailable
from isorun_backends.tensorrt import device_memory


class Pycuda:
    """``pycuda.driver`` with one context: freeing memory outside of it fails."""

    def __init__(self):
        self.freed, self.streams = [], []
        self._here = threading.local()
        self.Device = lambda number: SimpleNamespace(retain_primary_context=lambda: self)

    def init(self):
        pass

    def push(self):
        self._here.depth = self.depth + 1

    def pop(self):
        self._here.depth -= 1

    @property
    def depth(self):
        return getattr(self._here, "depth", 0)

    def Stream(self, flags=0):
        assert self.depth
        self.streams.append(flags)
        return SimpleNamespace(handle=len(self.streams))

    def mem_alloc(self, nbytes):
        assert self.depth
        return PycudaMemory(self, nbytes)


class PycudaMemory:
    def __init__(self, driver, nbytes):
        self.driver, self.address = driver, 1000 + nbytes

    def __int__(self):
        return self.address

    def free(self):
        assert self.driver.depth, "out of its context"
        self.driver.freed.append(self.address)


@pytest.fixture
def pycuda(monkeypatch):
    made = Pycuda()
    package = ModuleType("pycuda")
    package.driver = made
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.driver", made)
    return made


class Runtime:
    """``cuda.bindings.runtime``: every call returns an error code first."""

    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self):
        self.device, self.gone, self.launched, self.ended = 7, [], [], 0

    def cudaGetDevice(self):
        return 0, self.device

    def cudaSetDevice(self, number):
        self.device = number
        return (0,)

    def cudaStreamCreateWithFlags(self, flags):
        return 0, 50 + flags

    def cudaMalloc(self, nbytes):
        return 0, 2000 + nbytes

    def cudaStreamBeginCapture(self, stream, mode):
        return (0,)

    def cudaStreamEndCapture(self, stream):
        self.ended += 1
        return 0, "graph"

    def cudaGraphInstantiate(self, graph, flags):
        return 0, "started"

    def cudaGraphLaunch(self, started, stream):
        self.launched.append((started, stream))
        return (0,)

    def __getattr__(self, name):
        if "Destroy" in name or "Free" in name:
            return lambda what: (self.gone.append((name, what)), (0,))[1]
        raise AttributeError(name)


@pytest.fixture
def runtime(monkeypatch):
    made = Runtime()
    bindings = ModuleType("cuda.bindings")
    bindings.runtime = made
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", made)
    return made


def test_pycudas_memory_is_freed_from_any_thread(pycuda):
    held = device_memory.PycudaMemory(0)
    with held.current():
        kept = [held.allocate(8)]

    def work():
        kept.clear()
        gc.collect()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert pycuda.freed == [1008]
    assert pycuda.depth == 0


def test_streams_do_not_wait_for_the_default_stream(pycuda, runtime):
    held = device_memory.PycudaMemory(0)
    with held.current():
        assert held.stream() == 1
    assert pycuda.streams == [1]
    bindings = device_memory.CudaBindingsMemory(0)
    assert bindings.stream() == 51
    del bindings
    gc.collect()
    assert runtime.gone == [("cudaStreamDestroy", 51)]


def test_the_callers_device_is_restored(runtime):
    held = device_memory.CudaBindingsMemory(2)
    with held.current():
        assert runtime.device == 2
    assert runtime.device == 7
    with pytest.raises(ZeroDivisionError), held.current():
        raise ZeroDivisionError
    assert runtime.device == 7


def test_memory_of_cuda_bindings_is_freed(runtime):
    held = device_memory.CudaBindingsMemory(0)
    made = held.allocate(16)
    assert made.address == 2016
    del made
    gc.collect()
    assert runtime.gone == [("cudaFree", 2016)]


def test_a_graph_is_launched_and_released(runtime):
    done = []
    launch = device_memory.capture("tensorrt", 5, lambda: done.append(1))
    assert (done, runtime.gone) == ([1], [("cudaGraphDestroy", "graph")])
    launch()
    launch()
    assert runtime.launched == [("started", 5)] * 2
    del launch
    gc.collect()
    assert runtime.gone[1:] == [("cudaGraphExecDestroy", "started")]


def test_a_failure_ends_the_capture(runtime):
    def fail():
        raise BackendFailed("tensorrt cannot run")

    with pytest.raises(BackendFailed, match="tensorrt cannot run"):
        device_memory.capture("tensorrt", 5, fail)
    assert runtime.ended == 1


def test_an_error_code_raises(runtime):
    runtime.cudaMalloc = lambda nbytes: (2, None)
    with pytest.raises(BackendFailed, match="CUDA returned 2"):
        device_memory.CudaBindingsMemory(0).allocate(1)


def test_falls_back_to_the_package_that_imports(monkeypatch, runtime):
    """pycuda may have been built for a newer driver: it lacks a symbol then."""

    def refuse(number):
        raise ImportError("undefined symbol: cuCtxCreate_v4")

    monkeypatch.setattr(device_memory, "_installed", lambda: iter(("pycuda", "cuda.bindings")))
    monkeypatch.setattr(device_memory, "PycudaMemory", refuse)
    assert device_memory.open_memory("tensorrt", 0).name == "cuda-bindings"
    monkeypatch.setattr(device_memory, "CudaBindingsMemory", refuse)
    with pytest.raises(BackendUnavailable, match=r"pycuda.*cuCtxCreate_v4.*cuda.bindings"):
        device_memory.open_memory("tensorrt", 0)
