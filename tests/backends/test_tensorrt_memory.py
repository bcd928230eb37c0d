"""The seam of device memory on stand-ins for pycuda and cuda-bindings, which are strict where those are: about the
context that a thread is in, and about what is let go of. They answer as the real ones' signatures say; nothing here
says anything about CUDA itself."""

from __future__ import annotations

import gc
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from isorun.errors import BackendFailed, BackendUnavailable
from isorun_backends.tensorrt import memory


class Pycuda:
    """``pycuda.driver`` on one context: memory that goes outside of it is kept, as pycuda keeps it."""

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
    """``cuda.bindings.runtime``: every call answers with a code first."""

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


def test_pycudas_memory_is_given_back_by_whatever_thread_holds_it_last(pycuda):
    held = memory.PycudaMemory(0)
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


def test_streams_do_not_wait_for_the_default_one(pycuda, runtime):
    held = memory.PycudaMemory(0)
    with held.current():
        assert held.stream() == 1
    assert pycuda.streams == [1]
    bindings = memory.CudaBindingsMemory(0)
    assert bindings.stream() == 51
    del bindings
    gc.collect()
    assert runtime.gone == [("cudaStreamDestroy", 51)]


def test_the_callers_device_is_its_own_again(runtime):
    held = memory.CudaBindingsMemory(2)
    with held.current():
        assert runtime.device == 2
    assert runtime.device == 7
    with pytest.raises(ZeroDivisionError), held.current():
        raise ZeroDivisionError
    assert runtime.device == 7


def test_memory_of_cuda_bindings_is_given_back(runtime):
    held = memory.CudaBindingsMemory(0)
    made = held.allocate(16)
    assert made.address == 2016
    del made
    gc.collect()
    assert runtime.gone == [("cudaFree", 2016)]


def test_a_record_is_started_and_let_go_of(runtime):
    done = []
    launch = memory.capture("tensorrt", 5, lambda: done.append(1))
    assert (done, runtime.gone) == ([1], [("cudaGraphDestroy", "graph")])
    launch()
    launch()
    assert runtime.launched == [("started", 5)] * 2
    del launch
    gc.collect()
    assert runtime.gone[1:] == [("cudaGraphExecDestroy", "started")]


def test_what_fails_while_it_is_recorded_is_told_and_recording_ends(runtime):
    def fail():
        raise BackendFailed("tensorrt cannot run")

    with pytest.raises(BackendFailed, match="tensorrt cannot run"):
        memory.capture("tensorrt", 5, fail)
    assert runtime.ended == 1


def test_a_code_is_an_error(runtime):
    runtime.cudaMalloc = lambda nbytes: (2, None)
    with pytest.raises(BackendFailed, match="CUDA answers 2"):
        memory.CudaBindingsMemory(0).allocate(1)
    assert np.isscalar(memory.checked((0, 3)))


def test_a_package_that_does_not_load_leaves_it_to_the_other(monkeypatch, runtime):
    """pycuda may have been built for a newer driver: it lacks a symbol then."""

    def refuse(number):
        raise ImportError("undefined symbol: cuCtxCreate_v4")

    monkeypatch.setattr(memory, "_here", lambda: iter(("pycuda", "cuda.bindings")))
    monkeypatch.setattr(memory, "PycudaMemory", refuse)
    assert memory.open_memory("tensorrt", 0).name == "cuda-bindings"
    monkeypatch.setattr(memory, "CudaBindingsMemory", refuse)
    both = "pycuda does not load: undefined symbol: cuCtxCreate_v4; cuda.bindings does not load: "
    with pytest.raises(BackendUnavailable, match=both):
        memory.open_memory("tensorrt", 0)
