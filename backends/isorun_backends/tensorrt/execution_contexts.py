"""TensorRT's execution contexts, each with a stream and input and output buffers.

A context is not thread-safe: each run takes one from a pool (:mod:`isorun_backends.tensorrt.context_pool`). Each has
one profile, and buffers for its maximum shapes, so that addresses are stable.

A CUDA graph captures the state of its context, so a context with a graph is not modified again: it serves one shape,
through its graph. (NVIDIA's TensorRT guide requires this.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from isorun.plugin import BackendFailed, DeviceArray, Feeds, ModelInfo
from isorun_backends.nvidia.device_memory import Buffer, DeviceMemory
from isorun_backends.nvidia.gpu import check_device, input_address
from isorun_backends.nvidia.output_shapes import output_shapes
from isorun_backends.tensorrt import cuda_graph
from isorun_backends.tensorrt.engine import Engine
from isorun_backends.tensorrt.log import Log

ALIGNMENT = 256
"""TensorRT requires addresses to be a multiple of it. CUDA's allocations are; a slice of an array may not be, and is
copied on the device."""

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of a run's inputs, in the model's order."""


class ContextKey(NamedTuple):
    """What a context serves.

    Attributes:
        engine, profile: their indices among the executable's engines, and the engine's profiles.
        shapes: the only shapes, for a context with a CUDA graph; ``None`` for any.
    """

    engine: int
    profile: int
    shapes: Shapes | None


class ExecutionContext:
    """A context on one profile, with its stream and buffers. Used by one run at a time.

    Args:
        key: which of its profiles, and whether it serves one shape only.

    Attributes:
        stream: the handle of its stream.
        launch: launches the recorded CUDA graph; ``None`` if there is none.
    """

    def __init__(
        self, name: str, engine: Engine, key: ContextKey, info: ModelInfo, memory: DeviceMemory, index: int
    ) -> None:
        profile = engine.profiles[key.profile]
        self._name, self._memory, self._index, self._log = name, memory, index, Log()
        context = engine.create_context()
        if context is None:
            raise BackendFailed(f"{name} has no device memory for another context: {self._log}") from self._log.error()
        self._context = context
        self._records = key.shapes is not None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.stream = memory.stream()
        self.launch: Callable[[], None] | None = None
        self._require(context.set_optimization_profile_async(key.profile, self.stream), f"set the profile {profile}")
        maxima = profile.maxima()
        self._inputs = {
            spec.name: Buffer(memory, _fixed(spec.shape or (), maxima), spec.dtype)
            for spec in info.required
            if spec.dtype is not None and spec.name in engine.tensors
        }
        self._outputs = {
            output: Buffer(memory, shape, dtype) for output, (shape, dtype) in output_shapes(info, maxima).items()
        }

    def run(self, feeds: Feeds, targets: Mapping[str, Any]) -> list[Any]:
        """Run once and wait.

        Args:
            feeds: arrays in host memory or on the device.
            targets: for each output, a ``DeviceArray`` or host array to write to, or ``None`` for a new host array.
        """
        on_device = {name: target for name, target in targets.items() if isinstance(target, DeviceArray)}
        shapes = self.enqueue(feeds, on_device)
        for name, target in targets.items():
            buffer = self._outputs[name]
            if name not in on_device:
                self._memory.to_host(buffer.host(shapes[name]), buffer.device.address, self.stream)
            elif target.address % ALIGNMENT:
                self._memory.copy(target.address, buffer.device.address, target.nbytes, self.stream)
        self._memory.synchronize(self.stream)
        results = []
        for name, target in targets.items():
            if name not in on_device:
                host = self._outputs[name].host(shapes[name])
                target = np.empty_like(host) if target is None else target
                np.copyto(target, host)
            results.append(target)
        return results

    def enqueue(self, feeds: Feeds, outputs: Mapping[str, DeviceArray]) -> dict[str, tuple[int, ...]]:
        """Enqueue one run; returns the shapes of its outputs, which go to the buffers unless given."""
        addresses = {name: self._feed(name, buffer, feeds[name]) for name, buffer in self._inputs.items()}
        if self.launch is not None:
            self.launch()
            return self._shapes
        for name, address in addresses.items():
            shape = tuple(feeds[name].shape)
            self._require(self._context.set_input_shape(name, shape), f"set the shape of {name!r} to {shape}")
            self._require(self._context.set_tensor_address(name, address), f"bind {name!r}")
        for name, buffer in self._outputs.items():
            self._shapes[name] = tuple(int(size) for size in self._context.get_tensor_shape(name))
            address = buffer.device.address
            if name in outputs:
                target = outputs[name]
                check_device(f"Output {name!r}", target, self._index)
                address = address if target.address % ALIGNMENT else target.address
            self._require(self._context.set_tensor_address(name, address), f"bind {name!r}")
        self.execute()
        if self._records:  # TensorRT requires one ordinary run before the capture
            self.launch = cuda_graph.capture(self._name, self.stream, self.execute)
        return self._shapes

    def execute(self) -> None:
        """Enqueue the engine alone, with the current shapes and addresses."""
        self._require(self._context.execute_async_v3(self.stream), "run")

    def _feed(self, name: str, buffer: Buffer, array: np.ndarray | DeviceArray) -> int:
        """The device address of a feed, which may be written when the stream reaches this point."""
        if not isinstance(array, DeviceArray):
            host = buffer.host(array.shape)
            np.copyto(host, array)
            self._memory.to_device(buffer.device.address, host, self.stream)
            return buffer.device.address
        address = input_address(name, array, self._index, lambda: self._memory)
        if address % ALIGNMENT == 0:
            return address
        self._memory.copy(buffer.device.address, address, array.nbytes, self.stream)
        return buffer.device.address

    def _require(self, done: bool, what: str) -> None:
        if not done:
            raise BackendFailed(f"{self._name} cannot {what}: {self._log}") from self._log.error()


def _fixed(shape: Sequence[int | str | None], sizes: Mapping[str, int]) -> list[int]:
    return [size if isinstance(size, int) else sizes[size or ""] for size in shape]
