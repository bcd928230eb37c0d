"""A fake of TensorRT on ONNX Runtime's CPU provider, with the device memory of :mod:`fake_device_memory`.

It has the parts of the API that isorun uses and rejects what TensorRT rejects:
shapes outside the profile, missing or unaligned addresses, two threads in one context.
"""

from __future__ import annotations

import json
import threading
import time
from enum import IntEnum
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError

from fake_device_memory import ALIGNED, at, is_inside

__version__ = "10.16.1"
NetworkDefinitionCreationFlag = IntEnum("NetworkDefinitionCreationFlag", {"STRONGLY_TYPED": 1})
BuilderFlag = IntEnum("BuilderFlag", {"TF32": 6})
MemoryPoolType = IntEnum("MemoryPoolType", {"WORKSPACE": 0})
ProfilingVerbosity = IntEnum("ProfilingVerbosity", {"DETAILED": 2})
LayerInformationFormat = IntEnum("LayerInformationFormat", {"JSON": 1})
_TYPES = {"float": np.float32, "float16": np.float16, "int32": np.int32, "int64": np.int64}

builds: list[SimpleNamespace] = []
contexts: list[Context] = []
"""What was built and created, in order."""
broken: dict[str, str] = {}
"""What shall fail, with TensorRT's message: ``start``, ``build``, ``run``, ``description``, ``type``."""
pauses: dict[str, threading.Event] = {}
"""What shall wait for an event: ``build``, ``run``."""


class ILogger:
    Severity = IntEnum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE", start=0)


def forget():
    """Reset between tests."""
    for record in (builds, contexts, broken, pauses):
        record.clear()


def nptype(trt_type):
    return _TYPES[trt_type]


def _start(logger):
    assert is_inside(), "outside the device's context"
    if "start" in broken:
        logger.log(ILogger.Severity.ERROR, broken["start"])
        raise TypeError("pybind11::init(): factory function returned nullptr")


class Builder:
    def __init__(self, logger):
        _start(logger)
        self.logger = logger

    def create_network(self, flags):
        return SimpleNamespace(flags=flags, path=None)

    def create_builder_config(self):
        return BuilderConfig()

    def create_optimization_profile(self):
        shapes = {}
        return SimpleNamespace(shapes=shapes, set_shape=lambda name, *sizes: shapes.update({name: sizes}))

    def build_serialized_network(self, network, config):
        builds.append(SimpleNamespace(network=network, config=config))
        if "build" in pauses:
            assert pauses["build"].wait(30)
        if "build" in broken:
            self.logger.log(ILogger.Severity.ERROR, broken["build"])
            return None
        profiles = [profile.shapes for profile in config.profiles]
        return json.dumps({"path": network.path, "profiles": profiles}).encode()


class BuilderConfig:
    def __init__(self):
        self.profiles, self.cleared, self.workspace = [], [], None

    def clear_flag(self, flag):
        self.cleared.append(flag)

    def set_memory_pool_limit(self, pool, pool_size):
        self.workspace = pool_size

    def add_optimization_profile(self, profile):
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, content):
        known = set(content) <= set(b"t")
        return SimpleNamespace(serialize=lambda: content + b"t") if known else None

    def set_timing_cache(self, cache, ignore_mismatch):
        self.get_timing_cache = lambda: cache
        return True


class OnnxParser:
    def __init__(self, network, logger):
        self.network, self.nodes = network, []

    def parse_from_file(self, model):
        self.network.path = model
        try:
            nodes = onnx.load(model, load_external_data=False).graph.node
        except DecodeError:
            return False
        self.nodes = [node for node in nodes if node.domain not in ("", "ai.onnx")]
        return not self.nodes

    num_errors = property(lambda self: len(self.nodes))

    def get_error(self, index):
        node = self.nodes[index]
        return SimpleNamespace(
            desc=lambda: "no importer", node_name=lambda: node.name, node_operator=lambda: node.op_type
        )


class Runtime:
    def __init__(self, logger):
        _start(logger)
        self.logger = logger

    def deserialize_cuda_engine(self, serialized_engine):
        try:
            return Engine(self.logger, **json.loads(serialized_engine))
        except ValueError:
            self.logger.log(ILogger.Severity.ERROR, "the engine is damaged")
            return None


class Engine:
    def __init__(self, logger, path, profiles):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.logger, self.profiles, self.busy = logger, profiles, threading.Lock()
        self.nodes = onnx.load(path, load_external_data=False).graph.node
        read = {name for node in self.nodes for name in node.input}
        self.inputs = {tensor.name: tensor for tensor in self.session.get_inputs() if tensor.name in read}
        self.tensors = self.inputs | {tensor.name: tensor for tensor in self.session.get_outputs()}

    num_io_tensors = property(lambda self: len(self.tensors))

    def get_tensor_name(self, index):
        return list(self.tensors)[index]

    def get_tensor_dtype(self, name):
        return broken.get("type") or self.tensors[name].type[len("tensor(") : -1]

    def create_execution_context(self):
        assert self.busy.acquire(blocking=False), "two threads in one engine"
        time.sleep(0.01)
        contexts.append(Context(self))
        self.busy.release()
        return contexts[-1]

    def create_engine_inspector(self):
        layers = [{"LayerType": node.op_type} for node in self.nodes]
        description = broken.get("description") or json.dumps({"Layers": layers})
        return SimpleNamespace(get_engine_information=lambda format: description)


recording = threading.local()


def capture(work):
    """Record what a context would run. From then on the context runs only through the record."""
    recording.contexts = []
    work()
    captured, recording.contexts = recording.contexts, None
    for context in captured:
        context.recorded = True
    return lambda: [context.execute() for context in captured]


class Context:
    def __init__(self, engine):
        self.engine, self.profile, self.shapes, self.addresses = engine, None, {}, {}
        self.busy = threading.Lock()
        self.runs, self.recorded = 0, False

    def _touch(self):
        assert not self.recorded, "a context with a graph was modified"

    def _refuse(self, why):
        self.engine.logger.log(ILogger.Severity.ERROR, why)
        return False

    def set_optimization_profile_async(self, profile_index, stream_handle):
        assert stream_handle, "the default stream"
        self.profile = self.engine.profiles[profile_index] if self.engine.profiles else {}
        return True

    def set_input_shape(self, name, shape):
        self._touch()
        fixed = list(self.engine.tensors[name].shape)
        if name not in self.profile and any(isinstance(size, str) for size in fixed):
            return self._refuse(f"{name} has no profile")
        minimum, _, maximum = self.profile.get(name) or (fixed,) * 3
        self.shapes[name] = tuple(shape)
        inside = all(low <= size <= high for low, size, high in zip(minimum, shape, maximum, strict=True))
        return inside or self._refuse(f"{name} of {tuple(shape)} is outside the profile")

    def set_tensor_address(self, name, memory):
        self._touch()
        if name not in self.engine.tensors or memory % ALIGNED:
            return self._refuse(f"{name} at {memory} is no tensor, or not aligned to {ALIGNED} bytes")
        self.addresses[name] = memory
        return True

    def get_tensor_shape(self, name):
        sizes = {}
        for read, tensor in self.engine.inputs.items():
            sizes.update(zip(tensor.shape, self.shapes[read], strict=True))
        return [sizes.get(size, size) for size in self.engine.tensors[name].shape]

    def execute_async_v3(self, stream_handle):
        self._touch()
        assert stream_handle, "the default stream"
        if missing := set(self.engine.tensors) - set(self.addresses):
            return self._refuse(f"without an address: {', '.join(sorted(missing))}")
        if "run" in pauses:
            assert pauses["run"].wait(30)
        if "run" in broken:
            return self._refuse(broken["run"])
        if getattr(recording, "contexts", None) is not None:
            recording.contexts.append(self)
            return True
        return self.execute()

    def _fed(self, tensor):
        if tensor.name not in self.engine.inputs:  # nothing reads it
            return np.zeros([1] * len(tensor.shape), np.int64)
        dtype = np.dtype(nptype(self.engine.get_tensor_dtype(tensor.name)))
        return at(self.addresses[tensor.name], self.shapes[tensor.name], dtype)

    def execute(self):
        assert self.busy.acquire(blocking=False), "two threads in one context"
        try:
            feeds = {tensor.name: self._fed(tensor) for tensor in self.engine.session.get_inputs()}
            results = self.engine.session.run(None, feeds)
            for output, result in zip(self.engine.session.get_outputs(), results, strict=True):
                at(self.addresses[output.name], result.shape, result.dtype)[...] = result
            self.runs += 1
        finally:
            self.busy.release()
        return True
