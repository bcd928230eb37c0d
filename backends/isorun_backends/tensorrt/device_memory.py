"""Device memory, streams and CUDA graphs for engines, through a Python package for CUDA.

pycuda is preferred, on the primary context that ONNX Runtime and PyTorch share; cuda-bindings is used where pycuda does
not load. CUDA graphs always need cuda-bindings: pycuda cannot capture a stream. Not run on a GPU yet.
"""

from __future__ import annotations

import ctypes
import importlib.util
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from isorun.plugin import BackendFailed, BackendUnavailable

_NON_BLOCKING = 1  # stream flag of both packages: work on the default stream would break a capture


class Allocation(Protocol):
    """Device memory, freed with its last reference."""

    @property
    def address(self) -> int: ...


class Memory(Protocol):
    """What an engine needs from CUDA. Every call is made inside :meth:`current`."""

    name: str

    def current(self) -> AbstractContextManager[Any]:
        """Make the device's primary context current on this thread."""

    def stream(self) -> int:
        """A new stream, which lives as long as this object."""

    def allocate(self, nbytes: int) -> Allocation:
        """New device memory."""

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """A new array in pinned host memory."""

    def to_device(self, address: int, array: np.ndarray, stream: int) -> None:
        """Enqueue a copy from the host."""

    def to_host(self, array: np.ndarray, address: int, stream: int) -> None:
        """Enqueue a copy to the host."""

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueue a copy on the device."""

    def synchronize(self, stream: int) -> None:
        """Wait for all work on a stream."""


def available() -> str | None:
    """The first package that is installed; nothing is imported."""
    return next(iter(_installed()), None)


def open_memory(name: str, device: int) -> Memory:
    """The memory of a GPU through the first package that imports.

    Raises:
        BackendUnavailable: no package is installed, or none imports.
    """
    errors = []
    for package in _installed():
        try:
            return PycudaMemory(device) if package == "pycuda" else CudaBindingsMemory(device)
        except ImportError as error:
            errors.append(f"{package} does not import: {error}")
    if not errors:
        raise BackendUnavailable(
            name, "neither pycuda nor cuda-bindings is installed", "Install one: pip install pycuda"
        )
    raise BackendUnavailable(
        name,
        "; ".join(errors),
        "Both need the NVIDIA driver (libcuda.so.1), at least as new as the CUDA version that they were built for.",
    )


def _installed() -> Iterator[str]:
    for package in ("pycuda", "cuda.bindings"):
        try:
            if importlib.util.find_spec(package) is not None:
                yield package
        except ModuleNotFoundError:  # the parent package is missing
            continue


class _Allocation:
    """Device memory with the function that frees it."""

    def __init__(self, address: int, free: Callable[..., Any], *arguments: Any) -> None:
        self.address = address
        weakref.finalize(self, free, *arguments).atexit = False


class PycudaMemory:
    """Through pycuda, on the primary context."""

    name = "pycuda"

    def __init__(self, device: int) -> None:
        import pycuda.driver as driver

        driver.init()
        self._driver = driver
        self._context = driver.Device(device).retain_primary_context()
        self._streams: dict[int, Any] = {}

    @contextmanager
    def current(self) -> Iterator[None]:
        self._context.push()
        try:
            yield
        finally:
            self._context.pop()

    def stream(self) -> int:
        stream = self._driver.Stream(_NON_BLOCKING)
        self._streams[int(stream.handle)] = stream
        return int(stream.handle)

    def allocate(self, nbytes: int) -> Allocation:
        memory = self._driver.mem_alloc(max(1, nbytes))
        return _Allocation(int(memory), _free_in_context, self._context, memory)

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        array: np.ndarray = self._driver.pagelocked_empty(shape, dtype)
        return array

    def to_device(self, address: int, array: np.ndarray, stream: int) -> None:
        self._driver.memcpy_htod_async(address, array, self._streams[stream])

    def to_host(self, array: np.ndarray, address: int, stream: int) -> None:
        self._driver.memcpy_dtoh_async(array, address, self._streams[stream])

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._driver.memcpy_dtod_async(to, source, nbytes, self._streams[stream])

    def synchronize(self, stream: int) -> None:
        self._streams[stream].synchronize()


def _free_in_context(context: Any, memory: Any) -> None:
    """The last thread to hold the memory may be outside its context, where pycuda would not free it."""
    context.push()
    try:
        memory.free()
    finally:
        context.pop()


class CudaBindingsMemory:
    """Through cuda-bindings: the runtime API, which uses the primary context."""

    name = "cuda-bindings"

    def __init__(self, device: int) -> None:
        from cuda.bindings import runtime

        self._runtime, self._device = runtime, device

    @contextmanager
    def current(self) -> Iterator[None]:
        before = checked(self._runtime.cudaGetDevice())
        checked(self._runtime.cudaSetDevice(self._device))
        try:
            yield
        finally:
            checked(self._runtime.cudaSetDevice(before))  # the thread is the caller's

    def stream(self) -> int:
        stream = int(checked(self._runtime.cudaStreamCreateWithFlags(_NON_BLOCKING)))
        weakref.finalize(self, self._runtime.cudaStreamDestroy, stream).atexit = False
        return stream

    def allocate(self, nbytes: int) -> Allocation:
        address = int(checked(self._runtime.cudaMalloc(max(1, nbytes))))
        return _Allocation(address, self._runtime.cudaFree, address)

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        nbytes = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        address = int(checked(self._runtime.cudaHostAlloc(nbytes, 0)))
        memory = (ctypes.c_char * nbytes).from_address(address)
        weakref.finalize(memory, self._runtime.cudaFreeHost, address).atexit = False
        return np.ndarray(shape, dtype, memoryview(memory))

    def to_device(self, address: int, array: np.ndarray, stream: int) -> None:
        self._copy(address, array.ctypes.data, array.nbytes, "HostToDevice", stream)

    def to_host(self, array: np.ndarray, address: int, stream: int) -> None:
        self._copy(array.ctypes.data, address, array.nbytes, "DeviceToHost", stream)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._copy(to, source, nbytes, "DeviceToDevice", stream)

    def _copy(self, to: int, source: int, nbytes: int, direction: str, stream: int) -> None:
        kind = getattr(self._runtime.cudaMemcpyKind, f"cudaMemcpy{direction}")
        checked(self._runtime.cudaMemcpyAsync(to, source, nbytes, kind, stream))

    def synchronize(self, stream: int) -> None:
        checked(self._runtime.cudaStreamSynchronize(stream))


def checked(answer: tuple[Any, ...]) -> Any:
    """The result of a call of cuda-bindings, which returns an error code first.

    Raises:
        BackendFailed: the code is not 0.
    """
    code, *values = answer
    if int(code) != 0:
        raise BackendFailed(f"CUDA returned {code!r}")
    return values[0] if values else None


def capture(name: str, stream: int, work: Callable[[], None]) -> Callable[[], None]:
    """Record work on a stream as a CUDA graph.

    Args:
        name: the backend's name.
        stream: the stream.
        work: enqueues the work, which is recorded and not run.

    Returns:
        A function that launches the graph on the stream.

    Raises:
        BackendUnavailable: cuda-bindings is not installed.
        BackendFailed: CUDA cannot record the work.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise BackendUnavailable(
            name, f"CUDA graphs need cuda-bindings, which does not import ({error})", "pip install cuda-bindings"
        ) from error
    checked(runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
    try:
        work()
    except BaseException:
        runtime.cudaStreamEndCapture(stream)  # its own result does not matter: the first error is raised
        raise
    graph = checked(runtime.cudaStreamEndCapture(stream))
    try:
        executable = checked(runtime.cudaGraphInstantiate(graph, 0))
    finally:
        runtime.cudaGraphDestroy(graph)

    def launch() -> None:
        checked(runtime.cudaGraphLaunch(executable, stream))

    weakref.finalize(launch, runtime.cudaGraphExecDestroy, executable).atexit = False
    return launch
