"""Device memory, streams and graphs: the one seam between isorun and what reaches CUDA from Python.

pycuda fills it, on the primary context that ONNX Runtime and PyTorch use too; where pycuda cannot be built,
cuda-bindings does. Graphs are cuda-bindings' in either case: pycuda cannot record a stream. Not run on hardware yet.
"""

from __future__ import annotations

import importlib.util
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from isorun.errors import BackendFailed, BackendUnavailable

_NON_BLOCKING = 1  # of a stream, to both: the default stream's work, which would spoil a record, is not waited for


class Allocation(Protocol):
    """Memory on the device, given back when nothing refers to it."""

    @property
    def address(self) -> int: ...


class Memory(Protocol):
    """What an engine needs of CUDA. Every call is made inside :meth:`current`."""

    name: str

    def current(self) -> AbstractContextManager[Any]:
        """Make the device's primary context this thread's for a while."""

    def stream(self) -> int:
        """A new stream, which lives as long as this does."""

    def allocate(self, nbytes: int) -> Allocation:
        """Memory on the device."""

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """An array of the host that the device can copy from and to by itself."""

    def to_device(self, address: int, array: np.ndarray, stream: int) -> None:
        """Put a copy on a stream."""

    def to_host(self, array: np.ndarray, address: int, stream: int) -> None:
        """Put a copy on a stream."""

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        """Put a copy from the device to itself on a stream."""

    def synchronize(self, stream: int) -> None:
        """Wait for all that was put on a stream."""


def available() -> str | None:
    """The package that is here to fill the seam, the first of them; nothing is imported."""
    return next(iter(_here()), None)


def open_memory(name: str, device: int) -> Memory:
    """The device's memory by the first package that is here and loads; :attr:`Memory.name` says which.

    Raises:
        BackendUnavailable: none is here, or none loads.
    """
    errors = []
    for package in _here():
        try:
            return PycudaMemory(device) if package == "pycuda" else CudaBindingsMemory(device)
        except ImportError as error:
            errors.append(f"{package} does not load: {error}")
    if not errors:
        raise BackendUnavailable(name, "neither pycuda nor cuda-bindings is installed", "pip install pycuda")
    raise BackendUnavailable(
        name,
        "; ".join(errors),
        "They need the NVIDIA driver (libcuda.so.1), at least as new as the CUDA that they were built for.",
    )


def _here() -> Iterator[str]:
    for package in ("pycuda", "cuda.bindings"):
        try:
            if importlib.util.find_spec(package) is not None:
                yield package
        except ModuleNotFoundError:  # the package above it is missing
            continue


class PycudaMemory:
    """By pycuda, on the primary context."""

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
        made = self._driver.Stream(_NON_BLOCKING)
        self._streams[int(made.handle)] = made
        return int(made.handle)

    def allocate(self, nbytes: int) -> Allocation:
        return _PycudaAllocation(self._context, self._driver.mem_alloc(max(1, nbytes)))

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        made: np.ndarray = self._driver.pagelocked_empty(shape, dtype)
        return made

    def to_device(self, address: int, array: np.ndarray, stream: int) -> None:
        self._driver.memcpy_htod_async(address, array, self._streams[stream])

    def to_host(self, array: np.ndarray, address: int, stream: int) -> None:
        self._driver.memcpy_dtoh_async(array, address, self._streams[stream])

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._driver.memcpy_dtod_async(to, source, nbytes, self._streams[stream])

    def synchronize(self, stream: int) -> None:
        self._streams[stream].synchronize()


class _PycudaAllocation:
    """Given back in its context, which the last thread to hold it need not be in: there pycuda would keep it."""

    def __init__(self, context: Any, held: Any) -> None:
        self.address = int(held)
        weakref.finalize(self, _free, context, held).atexit = False


def _free(context: Any, held: Any) -> None:
    context.push()
    try:
        held.free()
    finally:
        context.pop()


class CudaBindingsMemory:
    """By cuda-bindings: the runtime API, which is on the primary context by itself."""

    name = "cuda-bindings"

    def __init__(self, device: int) -> None:
        from cuda.bindings import runtime

        self._runtime, self._device = runtime, device

    @contextmanager
    def current(self) -> Iterator[None]:
        before = self._call(self._runtime.cudaGetDevice())
        self._call(self._runtime.cudaSetDevice(self._device))
        try:
            yield
        finally:
            self._call(self._runtime.cudaSetDevice(before))  # the thread is the caller's

    def stream(self) -> int:
        made = int(self._call(self._runtime.cudaStreamCreateWithFlags(_NON_BLOCKING)))
        weakref.finalize(self, self._runtime.cudaStreamDestroy, made).atexit = False
        return made

    def allocate(self, nbytes: int) -> Allocation:
        return _BindingsAllocation(self._runtime, int(self._call(self._runtime.cudaMalloc(max(1, nbytes)))))

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        import ctypes

        nbytes = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        address = int(self._call(self._runtime.cudaHostAlloc(nbytes, 0)))
        memory = (ctypes.c_char * nbytes).from_address(address)
        weakref.finalize(memory, self._runtime.cudaFreeHost, address).atexit = False
        return np.ndarray(shape, dtype, memoryview(memory))

    def to_device(self, address: int, array: np.ndarray, stream: int) -> None:
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call(self._runtime.cudaMemcpyAsync(address, array.ctypes.data, array.nbytes, kind, stream))

    def to_host(self, array: np.ndarray, address: int, stream: int) -> None:
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call(self._runtime.cudaMemcpyAsync(array.ctypes.data, address, array.nbytes, kind, stream))

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call(self._runtime.cudaMemcpyAsync(to, source, nbytes, kind, stream))

    def synchronize(self, stream: int) -> None:
        self._call(self._runtime.cudaStreamSynchronize(stream))

    def _call(self, answer: tuple[Any, ...]) -> Any:
        return checked(answer)


class _BindingsAllocation:
    def __init__(self, runtime: Any, address: int) -> None:
        self.address = address
        weakref.finalize(self, runtime.cudaFree, address).atexit = False


def checked(answer: tuple[Any, ...]) -> Any:
    """The result of a call of cuda-bindings, which answers with an error code first.

    Raises:
        BackendFailed: the code is not 0.
    """
    code, *values = answer
    if int(code) != 0:
        raise BackendFailed(f"CUDA answers {code!r}")
    return values[0] if values else None


def capture(name: str, stream: int, work: Callable[[], None]) -> Callable[[], None]:
    """Record what is put on a stream as a graph.

    Args:
        name: the backend's.
        stream: where the work is put.
        work: puts it there; nothing of it is run.

    Returns:
        Starts the graph on the stream.

    Raises:
        BackendUnavailable: cuda-bindings is not installed.
        BackendFailed: CUDA cannot record it.
    """
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise BackendUnavailable(
            name,
            f"CUDA graphs are recorded by cuda-bindings, which does not load ({error})",
            "pip install cuda-bindings",
        ) from error
    checked(runtime.cudaStreamBeginCapture(stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal))
    try:
        work()
    except BaseException:
        runtime.cudaStreamEndCapture(stream)  # whatever it answers: the first error is the one to tell
        raise
    graph = checked(runtime.cudaStreamEndCapture(stream))
    try:
        started = checked(runtime.cudaGraphInstantiate(graph, 0))
    finally:
        runtime.cudaGraphDestroy(graph)

    def launch() -> None:
        checked(runtime.cudaGraphLaunch(started, stream))

    weakref.finalize(launch, runtime.cudaGraphExecDestroy, started).atexit = False
    return launch
