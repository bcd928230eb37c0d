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

from isorun.errors import BackendFailed
from isorun.types import ModelInfo
from isorun_backends.output_shapes import output_shapes
from isorun_backends.tensorrt.api import Context, Engine
from isorun_backends.tensorrt.memory import Allocation, Memory
from isorun_backends.tensorrt.profiles import Profile

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

    Attributes:
        launch: starts the graph that was recorded, with which the context is as it was; ``None`` where there is none.
        shapes: of the outputs, in that graph.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        index: int,
        profile: Profile,
        info: ModelInfo,
        memory: Memory,
    ) -> None:
        context = engine.create_execution_context()
        if context is None:
            raise BackendFailed(f"{name} has no memory on the device for another context")
        self.context: Context = context
        self.stream = memory.stream()
        self.launch: Callable[[], None] | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        if not context.set_optimization_profile_async(index, self.stream):
            raise BackendFailed(f"{name} cannot take the profile {profile}")
        most = {symbol: size[2] for symbol, size in profile.sizes.items()}
        self.inputs = {
            spec.name: Buffer(memory, _sized(spec.shape, most), spec.dtype)
            for spec in info.inputs
            if spec.dtype is not None
        }
        self.outputs = {
            output: Buffer(memory, shape, dtype) for output, (shape, dtype) in output_shapes(info, most).items()
        }


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


def _sized(shape: Sequence[int | str | None] | None, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else sizes[size or ""] for size in shape or ())
