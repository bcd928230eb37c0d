"""Recording on a fake of cuda-bindings, which follows its signatures."""

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest

from isorun.errors import BackendFailed
from isorun_backends.tensorrt import cuda_graph


class Runtime:
    """``cuda.bindings.runtime``: every call returns an error code first."""

    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)

    def __init__(self):
        self.calls, self.code = [], 0

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))
            return self.code, f"the result of {name}"

        return call


@pytest.fixture
def runtime(monkeypatch):
    bindings = ModuleType("cuda.bindings")
    bindings.runtime = Runtime()
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", bindings.runtime)
    return bindings.runtime


def test_a_graph_is_recorded_launched_and_released(runtime):
    launch = cuda_graph.capture("tensorrt", 5, lambda: runtime.calls.append("work"))
    executable = "the result of cudaGraphInstantiate"
    assert runtime.calls == [
        ("cudaStreamBeginCapture", 5, 1),
        "work",
        ("cudaStreamEndCapture", 5),
        ("cudaGraphInstantiate", "the result of cudaStreamEndCapture", 0),
        ("cudaGraphDestroy", "the result of cudaStreamEndCapture"),
    ]
    launch()
    assert runtime.calls[-1] == ("cudaGraphLaunch", executable, 5)
    del launch
    gc.collect()
    assert runtime.calls[-1] == ("cudaGraphExecDestroy", executable)


def test_a_failure_ends_the_capture(runtime):
    def fail():
        raise BackendFailed("tensorrt cannot run")

    with pytest.raises(BackendFailed, match="tensorrt cannot run"):
        cuda_graph.capture("tensorrt", 5, fail)
    assert runtime.calls[-1] == ("cudaStreamEndCapture", 5)


def test_an_error_code_raises(runtime):
    runtime.code = 2
    with pytest.raises(BackendFailed, match="CUDA returned 2"):
        cuda_graph.capture("tensorrt", 5, lambda: None)
