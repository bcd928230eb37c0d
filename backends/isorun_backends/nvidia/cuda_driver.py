"""The NVIDIA driver (``libcuda``) through ctypes: which GPUs there are, streams, events, pinned memory and copies.

No Python package is needed. Every function but :func:`driver` raises ``BackendFailed`` with the driver's message if a
call fails. Written from NVIDIA's "CUDA Driver API" manual and tested against a fake ``libcuda``; not run on a GPU yet.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np

from isorun.plugin import BackendFailed

_LIBRARY = "libcuda.so.1"
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76  # CUdevice_attribute
_NON_BLOCKING = 1  # CUstream_flags: does not wait for the default stream
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: usable from every context


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver describes it.

    Attributes:
        name: such as ``NVIDIA H200``.
        compute: the compute capability, such as ``9.0``.
        memory: in bytes.
    """

    name: str
    compute: str
    memory: int


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver and its GPUs.

    Attributes:
        cuda: the newest CUDA version that the driver supports, such as ``13.0``; empty without a driver.
        gpus: in the driver's order, which ``CUDA_VISIBLE_DEVICES`` may restrict.
        problem: why no GPU can be used; empty if one can.
    """

    cuda: str
    gpus: tuple[Gpu, ...]
    problem: str


@cache
def driver() -> Driver:
    """The driver of this machine, queried once per process. Never raises."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return Driver("", (), f"no NVIDIA driver is installed ({error})")
    if code := library.cuInit(0):
        return Driver("", (), f"the NVIDIA driver does not start: {_message(library, code)}")
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    library.cuDeviceGetCount(ctypes.byref(number))
    gpus = tuple(_gpu(library, index) for index in range(number.value))
    return Driver(version, gpus, "" if gpus else "the NVIDIA driver reports no GPU (is CUDA_VISIBLE_DEVICES empty?)")


class Stream:
    """A CUDA stream, destroyed with its last reference.

    Attributes:
        handle: the driver's handle.
    """

    def __init__(self, device: int) -> None:
        stream = ctypes.c_void_p()
        with _context(device) as library:
            _check(library, library.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING), "create a stream")
        self.handle = stream.value or 0
        weakref.finalize(self, _destroy, device, self.handle).atexit = False  # CUDA itself may be gone at exit


def synchronize(stream: int, device: int) -> None:
    """Wait for all work on a stream."""
    with _context(device) as library:
        code = library.cuStreamSynchronize(ctypes.c_void_p(stream))
        _check(library, code, f"wait for stream {stream}")


def times(stream: int, device: int, work: Callable[[], object], runs: int) -> np.ndarray:
    """Measure work on the device with events before and after it.

    Args:
        stream, device: where the work is enqueued.
        work: enqueues it; may wait for it.
        runs: how often.

    Returns:
        (runs,), float64, milliseconds. Includes time in which the device waits for the host between the two events.
    """
    measured = np.empty(runs)
    with _context(device) as library:
        ends = (ctypes.c_void_p(), ctypes.c_void_p())
        for event in ends:
            _check(library, library.cuEventCreate(ctypes.byref(event), 0), "create an event")
        try:
            milliseconds = ctypes.c_float()
            for run in range(runs):
                _check(library, library.cuEventRecord(ends[0], ctypes.c_void_p(stream)), "record an event")
                work()
                _check(library, library.cuEventRecord(ends[1], ctypes.c_void_p(stream)), "record an event")
                _check(library, library.cuEventSynchronize(ends[1]), "wait for an event")
                _check(library, library.cuEventElapsedTime(ctypes.byref(milliseconds), *ends), "compare two events")
                measured[run] = milliseconds.value
        finally:
            for event in ends:
                library.cuEventDestroy_v2(event)
    return measured


def host_memory(nbytes: int, device: int) -> int:
    """The address of new pinned host memory. It is never freed."""
    address = ctypes.c_void_p()
    with _context(device) as library:
        code = library.cuMemHostAlloc(ctypes.byref(address), ctypes.c_size_t(nbytes), _PORTABLE)
        _check(library, code, f"pin {nbytes} bytes of host memory")
    return address.value or 0


def copy_to_device(copies: Sequence[tuple[int, np.ndarray]], stream: int, device: int) -> None:
    """Enqueue copies of C-contiguous arrays in pinned memory to addresses on the device. The arrays must not change
    until the stream has executed the copies.
    """
    with _context(device) as library:
        for address, array in copies:
            source, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            code = library.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(address), source, size, ctypes.c_void_p(stream))
            _check(library, code, f"copy {array.nbytes} bytes to the device")


def copy_to_host(array: np.ndarray, address: int, device: int) -> None:
    """Copy from the device to a C-contiguous array and wait. Whatever writes to the address must be finished."""
    target, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
    with _context(device) as library:
        code = library.cuMemcpyDtoH_v2(target, ctypes.c_uint64(address), size)
        _check(library, code, f"copy {array.nbytes} bytes from the device")


@contextmanager
def _context(device: int) -> Iterator[ctypes.CDLL]:
    """Make a GPU's primary context, which every user of CUDA's runtime shares, current on this thread."""
    library, primary = _primary(device)
    _check(library, library.cuCtxPushCurrent_v2(primary), f"enter the context of GPU {device}")
    try:
        yield library
    finally:
        library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@cache
def _primary(device: int) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """Retained for the life of the process, as by CUDA's runtime."""
    library = ctypes.CDLL(_LIBRARY)
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _check(library, library.cuInit(0), "start")
    _check(library, library.cuDeviceGet(ctypes.byref(handle), device), f"find GPU {device}")
    _check(library, library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), f"open GPU {device}")
    return library, context


def _destroy(device: int, stream: int) -> None:
    with _context(device) as library:
        library.cuStreamDestroy_v2(ctypes.c_void_p(stream))


def _check(library: ctypes.CDLL, code: int, doing: str) -> None:
    if code:
        raise BackendFailed(f"The NVIDIA driver cannot {doing}: {_message(library, code)}")


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    compute = []
    for attribute in (_COMPUTE_MAJOR, _COMPUTE_MINOR):
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        compute.append(str(value.value))
    return Gpu(name.value.decode(), ".".join(compute), memory.value)


def _message(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    return f"{(text.value or b'').decode() or 'unknown error'} (CUDA error {code})"
