"""TensorRT's contexts, each with a stream and the buffers that it reads and writes.

A context is not to be used from two threads, so each run takes one that is idle, or makes one: as many come to be as
runs were ever in flight at once. Each is tied to one profile and has buffers for that profile's greatest shapes, so
that addresses stay what they are.

A CUDA graph holds the state that its context had, so a context of which one was recorded is not touched again: it
serves one shape alone, by its graph, and other shapes have others. (NVIDIA's guide to TensorRT asks for it.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from isorun.errors import BackendFailed, InvalidFeeds
from isorun.plugin.device_arrays import DeviceArray
from isorun.types import Feeds, ModelInfo
from isorun_backends import cuda_driver
from isorun_backends.output_shapes import output_shapes
from isorun_backends.tensorrt import memory as memories
from isorun_backends.tensorrt.api import Context
from isorun_backends.tensorrt.loaded import Loaded
from isorun_backends.tensorrt.log import Log
from isorun_backends.tensorrt.memory import Allocation, Memory

ALIGNED = 256
"""What TensorRT wants an address to be a multiple of. CUDA's own memory is; a part of an array need not be, and is
copied on the device."""

Shapes = tuple[tuple[int, ...], ...]
"""Those of a run's inputs, in the model's order."""


class Key(NamedTuple):
    """What a context serves.

    Attributes:
        engine, profile: their numbers.
        shapes: the only ones, where it is recorded as a CUDA graph; ``None`` for any.
    """

    engine: int
    profile: int
    shapes: Shapes | None


class Slot:
    """One context on one profile, with its stream and buffers. Used by one run at a time.

    Args:
        name: the backend's.
        loaded: the engine.
        key: which of its profiles, and whether one shape alone.
        info: the model's inputs and outputs.
        memory: the device's.
        device: its number.

    Attributes:
        launch: starts the graph that was recorded, with which the context is as it was; ``None`` where there is none.
    """

    def __init__(self, name: str, loaded: Loaded, key: Key, info: ModelInfo, memory: Memory, device: int) -> None:
        profile = loaded.profiles[key.profile]
        self._name, self._memory, self._device, self._log = name, memory, device, Log()
        context = loaded.context()
        if context is None:
            raise BackendFailed(
                f"{name} has no memory on the device for another context: {self._log}"
            ) from self._log.error()
        self._context: Context = context
        self._is_recorded = key.shapes is not None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.stream = memory.stream()
        self.launch: Callable[[], None] | None = None
        self._ask(context.set_optimization_profile_async(key.profile, self.stream), f"take the profile {profile}")
        most = {symbol: size[2] for symbol, size in profile.sizes.items()}
        self._inputs = {
            spec.name: Buffer(memory, _sized(spec.shape, most), spec.dtype)
            for spec in info.inputs
            if spec.dtype is not None and spec.name in loaded.tensors
        }
        self._outputs = {
            output: Buffer(memory, shape, dtype) for output, (shape, dtype) in output_shapes(info, most).items()
        }

    def run(self, feeds: Feeds, wanted: Mapping[str, Any]) -> list[Any]:
        """Run once, and wait for it.

        Args:
            feeds: arrays in host memory, or on the device.
            wanted: for each output where it is to go: a ``DeviceArray`` or an array of the host's, or ``None`` for a
                new one.
        """
        given = {name: each for name, each in wanted.items() if isinstance(each, DeviceArray)}
        shapes = self.enqueue(feeds, given)
        for name, each in wanted.items():
            buffer = self._outputs[name]
            if name not in given:
                self._memory.to_host(buffer.host(shapes[name]), buffer.device.address, self.stream)
            elif each.address % ALIGNED:
                self._memory.copy(each.address, buffer.device.address, each.nbytes, self.stream)
        self._memory.synchronize(self.stream)
        return [
            each if name in given else _taken(self._outputs[name].host(shapes[name]), each)
            for name, each in wanted.items()
        ]

    def enqueue(self, feeds: Feeds, outputs: Mapping[str, DeviceArray]) -> dict[str, tuple[int, ...]]:
        """Put one run on the stream; the shapes of its outputs, which are in buffers where they are not given."""
        addresses = {name: self._feed(name, buffer, feeds[name]) for name, buffer in self._inputs.items()}
        if self.launch is not None:
            self.launch()
            return self._shapes
        for name, address in addresses.items():
            shape = tuple(feeds[name].shape)
            self._ask(self._context.set_input_shape(name, shape), f"take {name!r} of {shape}")
            self._ask(self._context.set_tensor_address(name, address), f"read {name!r}")
        for name, buffer in self._outputs.items():
            self._shapes[name] = tuple(int(size) for size in self._context.get_tensor_shape(name))
            address = buffer.device.address
            if name in outputs:
                given = outputs[name]
                self._check_device(f"Output {name!r}", given)
                address = address if given.address % ALIGNED else given.address
            self._ask(self._context.set_tensor_address(name, address), f"write {name!r}")
        self.execute()
        if self._is_recorded:  # TensorRT asks for a run as it is, before
            self.launch = memories.capture(self._name, self.stream, self.execute)
        return self._shapes

    def execute(self) -> None:
        """Put the engine alone on the stream, with shapes and addresses as they are."""
        self._ask(self._context.execute_async_v3(self.stream), "run")

    def _feed(self, name: str, buffer: Buffer, array: np.ndarray | DeviceArray) -> int:
        """The address on the device where a feed is, or will be when the stream comes to it."""
        if not isinstance(array, DeviceArray):
            host = buffer.host(array.shape)
            np.copyto(host, array)
            self._memory.to_device(buffer.device.address, host, self.stream)
            return buffer.device.address
        self._check_device(f"Input {name!r}", array)
        if array.stream is not None:
            cuda_driver.synchronize(array.stream, array.device_id)
        if array.address % ALIGNED == 0:
            return array.address
        self._memory.copy(buffer.device.address, array.address, array.nbytes, self.stream)
        return buffer.device.address

    def _check_device(self, what: str, array: DeviceArray) -> None:
        if array.device_id != self._device:
            raise InvalidFeeds(f"{what} is on GPU {array.device_id}; this session is on GPU {self._device}")

    def _ask(self, done: bool, what: str) -> None:
        if not done:
            raise BackendFailed(f"{self._name} cannot {what}: {self._log}") from self._log.error()


class Buffer:
    """Memory for one tensor: on the device, and beside it in the host for copies."""

    def __init__(self, memory: Memory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        size = int(np.prod(shape, dtype=np.int64))
        self.device: Allocation = memory.allocate(size * dtype.itemsize)
        self._host = memory.pinned((size,), dtype)

    def host(self, shape: Sequence[int]) -> np.ndarray:
        """The host's side, as much of it as a shape needs."""
        return self._host[: int(np.prod(shape, dtype=np.int64))].reshape(shape)


def _taken(host: np.ndarray, wanted: np.ndarray | None) -> np.ndarray:
    if wanted is None:
        return host.copy()
    np.copyto(wanted, host)
    return wanted


def _sized(shape: Sequence[int | str | None] | None, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else sizes[size or ""] for size in shape or ())
