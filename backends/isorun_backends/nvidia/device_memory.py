"""A GPU's memory, streams, copies and events through pycuda, on the primary context that ONNX Runtime and PyTorch use.

pycuda releases what it allocated only on the thread of its context, or while the context is current. So nothing that it
allocates leaves this module: what does is released by a finalizer that makes the context current on its thread.

Written from pycuda 2026.1's source.
"""

from __future__ import annotations

import ctypes
import importlib.util
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from isorun.plugin import BackendUnavailable

INSTALL = (
    "Install it with `pip install pycuda`, which compiles it: that needs a C++ compiler, Python's headers, and CUDA's "
    "toolkit with nvcc on PATH (docs/gpu.md)."
)
_DEFAULT_STREAM = 1  # its number in `__cuda_array_interface__` and `__dlpack__`
_NON_BLOCKING = 1  # stream flag: work on the default stream would break a capture


def is_installed() -> bool:
    """Whether pycuda is installed. It is not imported."""
    return importlib.util.find_spec("pycuda") is not None


def open_memory(name: str, device: int) -> DeviceMemory:
    """The memory of a GPU. Raises ``BackendUnavailable`` if pycuda is not installed or does not import."""
    if not is_installed():
        raise BackendUnavailable(name, "the package 'pycuda' is not installed", INSTALL)
    try:
        return DeviceMemory(device)
    except ImportError as error:
        raise BackendUnavailable(
            name,
            f"pycuda does not import: {error}",
            "It needs the NVIDIA driver (libcuda.so.1), at least as new as the CUDA version that it was built for.",
        ) from error


class Allocation:
    """Device memory from an address on, freed with its last reference."""

    def __init__(self, address: int) -> None:
        self.address = address


class DeviceMemory:
    """One GPU. Every call but :meth:`current` is made inside :meth:`current`."""

    def __init__(self, device: int) -> None:
        import pycuda.driver as driver

        driver.init()
        self._driver = driver
        self._context = driver.Device(device).retain_primary_context()
        self._streams: dict[int, Any] = {}
        self._keep(self, self._streams)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the GPU's primary context current on this thread."""
        with _current(self._context):
            yield

    def stream(self) -> int:
        """A new stream, which lives as long as this object."""
        stream = self._driver.Stream(_NON_BLOCKING)
        self._streams[int(stream.handle)] = stream
        return int(stream.handle)

    def allocate(self, nbytes: int) -> Allocation:
        """New device memory."""
        memory = self._driver.mem_alloc(max(1, nbytes))
        allocation = Allocation(int(memory))
        self._keep(allocation, [memory])
        return allocation

    def pinned(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """A new array in pinned host memory, which a GPU copies from and to directly."""
        memory = self._driver.pagelocked_empty(max(1, prod(shape) * dtype.itemsize), np.uint8)
        view = (ctypes.c_char * memory.nbytes).from_address(memory.ctypes.data)
        self._keep(view, [memory])
        return np.ndarray(tuple(shape), dtype, memoryview(view))

    def to_device(self, address: int, array: np.ndarray, stream: int) -> None:
        """Enqueue a copy from pinned host memory, which must not change until the stream has executed it."""
        self._driver.memcpy_htod_async(address, array, self._streams[stream])

    def to_host(self, array: np.ndarray, address: int, stream: int) -> None:
        """Enqueue a copy to pinned host memory."""
        self._driver.memcpy_dtoh_async(array, address, self._streams[stream])

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy on the device."""
        self._driver.memcpy_dtod_async(to, source, nbytes, self._streams[stream])

    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream of this object."""
        self._streams[stream].synchronize()

    def wait_for(self, stream: int) -> None:
        """Wait for the work on another library's stream.

        pycuda can wait for the default stream, but for no stream that it did not create: for those, this waits for all
        work on the GPU, which fails while a CUDA graph is recorded.
        """
        if stream == _DEFAULT_STREAM:
            self._driver.Event().record().synchronize()
        else:
            self._driver.Context.synchronize()

    def times(self, stream: int, work: Callable[[], object], runs: int) -> np.ndarray:
        """Measure work on the device with events before and after it.

        Args:
            stream: a stream of this object, on which the work is enqueued.
            work: enqueues it; may wait for it.

        Returns:
            (runs,), float64, milliseconds. Includes time in which the device waits for the host between the two events.
        """
        measured = np.empty(runs)
        start, end = self._driver.Event(), self._driver.Event()
        for run in range(runs):
            start.record(self._streams[stream])
            work()
            end.record(self._streams[stream])
            end.synchronize()
            measured[run] = start.time_till(end)
        return measured

    def _keep(self, owner: object, resources: list[Any] | dict[int, Any]) -> None:
        """Release what pycuda allocated with its owner, on whatever thread that is."""
        weakref.finalize(owner, _release, self._context, resources).atexit = False  # CUDA may be gone at exit


class Buffer:
    """Memory for one tensor on the device, and pinned host memory for copies."""

    def __init__(self, memory: DeviceMemory, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        size = prod(shape)
        self.dtype = dtype
        self.device = memory.allocate(size * dtype.itemsize)
        self._host = memory.pinned((size,), dtype)

    def host(self, shape: Sequence[int]) -> np.ndarray:
        """The part of the host memory that a shape needs."""
        return self._host[: prod(shape)].reshape(shape)


@contextmanager
def _current(context: Any) -> Iterator[None]:
    context.push()
    try:
        yield
    finally:
        context.pop()


def _release(context: Any, resources: list[Any] | dict[int, Any]) -> None:
    with _current(context):
        resources.clear()
