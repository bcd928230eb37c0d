"""TensorRT and a GPU, played by ONNX Runtime's CPU provider and the host's memory.

The parts of the API that isorun uses (``isorun_backends.tensorrt.api``), strict where TensorRT is: shapes outside the
profile, addresses that were not set and two threads in one context are refused.
"""

from __future__ import annotations

import ctypes
import json
import threading
from contextlib import contextmanager
from enum import IntEnum
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime

__version__ = "10.16.1"


class ILogger:
    class Severity(IntEnum):
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self):
        self.ready = True


class NetworkDefinitionCreationFlag(IntEnum):
    STRONGLY_TYPED = 1


BuilderFlag = IntEnum("BuilderFlag", ["TF32"])
MemoryPoolType = IntEnum("MemoryPoolType", ["WORKSPACE"])
ProfilingVerbosity = IntEnum("ProfilingVerbosity", ["DETAILED"])
LayerInformationFormat = IntEnum("LayerInformationFormat", ["JSON"])

builds: list[SimpleNamespace] = []
"""What was built, in order: forget it between tests."""


class Builder:
    def __init__(self, logger):
        assert logger.ready, "ILogger.__init__ was not called"
        self.logger = logger

    def create_network(self, flags):
        return SimpleNamespace(flags=flags, path=None, num_inputs=0)

    def create_builder_config(self):
        return BuilderConfig()

    def create_optimization_profile(self):
        return OptimizationProfile()

    def build_serialized_network(self, network, config):
        builds.append(SimpleNamespace(network=network, config=config))
        if config.level > 5:
            self.logger.log(ILogger.Severity.ERROR, "the level is above 5")
            return None
        profiles = [profile.shapes for profile in config.profiles]
        return json.dumps({"path": network.path, "profiles": profiles}).encode()


class BuilderConfig:
    def __init__(self):
        self.profiles, self.cleared, self.level, self.timings = [], [], 3, None

    def clear_flag(self, flag):
        self.cleared.append(flag)

    def set_memory_pool_limit(self, pool, pool_size):
        self.workspace = pool_size

    def add_optimization_profile(self, profile):
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, serialized_timing_cache):
        return SimpleNamespace(serialize=lambda: serialized_timing_cache + b"t")

    def set_timing_cache(self, cache, ignore_mismatch):
        self.timings = cache
        return True

    def get_timing_cache(self):
        return self.timings

    builder_optimization_level = property(lambda self: self.level, lambda self, value: setattr(self, "level", value))


class OptimizationProfile:
    def __init__(self):
        self.shapes = {}

    def set_shape(self, input, min, opt, max):
        self.shapes[input] = [list(min), list(opt), list(max)]


class OnnxParser:
    num_errors = 1

    def __init__(self, network, logger):
        self.network = network

    def parse_from_file(self, model):
        self.network.path = model
        return all(node.domain in ("", "ai.onnx") for node in onnx.load(model, load_external_data=False).graph.node)

    def get_error(self, index):
        return SimpleNamespace(
            desc=lambda: "no importer", node_name=lambda: "attention", node_operator=lambda: "Attention"
        )


class Runtime:
    def __init__(self, logger):
        self.logger = logger

    def deserialize_cuda_engine(self, serialized_engine):
        try:
            return Engine(**json.loads(serialized_engine))
        except ValueError:
            self.logger.log(ILogger.Severity.ERROR, "the engine is damaged")
            return None


class Engine:
    def __init__(self, path, profiles):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.profiles = profiles
        self.contexts: list[Context] = []

    def create_execution_context(self):
        self.contexts.append(Context(self))
        return self.contexts[-1]

    def create_engine_inspector(self):
        layers = {"Layers": [{"LayerType": "gemm"}, {"LayerType": "gemm"}, {"LayerType": "mha"}]}
        return SimpleNamespace(get_engine_information=lambda format: json.dumps(layers))


recording = threading.local()


def capture(name, stream, work):
    """A record of what a context would run. From then on the context is only run by it."""
    recording.contexts = []
    work()
    contexts, recording.contexts = recording.contexts, None
    for context in contexts:
        context.recorded = True
    return lambda: [context.execute() for context in contexts]


class Context:
    def __init__(self, engine):
        self.engine, self.profile, self.shapes, self.addresses = engine, None, {}, {}
        self.busy = threading.Lock()
        self.runs, self.recorded = 0, False

    def _touch(self):
        assert not self.recorded, "what a graph was recorded of is changed"

    def set_optimization_profile_async(self, profile_index, stream_handle):
        self.profile = self.engine.profiles[profile_index] if self.engine.profiles else {}
        return True

    def set_input_shape(self, name, shape):
        self._touch()
        least, _, most = self.profile[name]
        self.shapes[name] = tuple(shape)
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def set_tensor_address(self, name, memory):
        self._touch()
        self.addresses[name] = memory
        return memory != 0

    def get_tensor_shape(self, name):
        batch, sequence = next(iter(self.shapes.values()))
        output = next(each for each in self.engine.session.get_outputs() if each.name == name)
        return [{"batch": batch, "sequence": sequence}.get(size, size) for size in output.shape]

    def execute_async_v3(self, stream_handle):
        self._touch()
        if getattr(recording, "contexts", None) is not None:
            recording.contexts.append(self)
            return True
        return self.execute()

    def execute(self):
        assert self.busy.acquire(blocking=False), "two threads in one context"
        try:
            inputs = self.engine.session.get_inputs()
            feeds = {
                each.name: at(self.addresses[each.name], self.shapes[each.name], np.dtype(np.int64)) for each in inputs
            }
            results = self.engine.session.run(None, feeds)
            for output, result in zip(self.engine.session.get_outputs(), results, strict=True):
                at(self.addresses[output.name], result.shape, result.dtype)[...] = result
            self.runs += 1
        finally:
            self.busy.release()
        return True


def at(address, shape, dtype):
    """The array at an address of the host."""
    size = int(np.prod(shape)) * dtype.itemsize
    return np.ndarray(tuple(shape), dtype, memoryview((ctypes.c_char * size).from_address(address)))


class HostMemory:
    """The seam of device memory, in the host's."""

    name = "host"

    def __init__(self):
        self.depth = threading.local()
        self.allocated = 0

    @contextmanager
    def current(self):
        self.depth.value = True
        try:
            yield
        finally:
            self.depth.value = False

    def _inside(self):
        assert getattr(self.depth, "value", False), "outside current()"

    def stream(self):
        self._inside()
        return 1

    def allocate(self, nbytes):
        self._inside()
        self.allocated += nbytes
        held = np.zeros(nbytes, np.uint8)
        return SimpleNamespace(address=held.ctypes.data, held=held)

    def pinned(self, shape, dtype):
        self._inside()
        return np.empty(shape, dtype)

    def to_device(self, address, array, stream):
        self._inside()
        ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, array.nbytes)

    def to_host(self, array, address, stream):
        self._inside()
        assert array.flags.c_contiguous
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def synchronize(self, stream):
        self._inside()
