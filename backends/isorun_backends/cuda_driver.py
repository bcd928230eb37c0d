"""What is asked of the NVIDIA driver itself: ``libcuda`` through ctypes, so that no package is needed to know
whether there is a GPU, what it is called, when a stream's work is done and how long it took.

Read in NVIDIA's "CUDA Driver API" manual. Not run on hardware yet, save for the answer of a machine without a driver.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np

from isorun.errors import BackendFailed

_LIBRARY = "libcuda.so.1"
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76  # CUdevice_attribute
_NON_BLOCKING = 1  # CUstream_flags: its work does not wait for the default stream's
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: every context may copy to it


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as the driver describes it.

    Attributes:
        name: such as ``NVIDIA H200``.
        compute: its compute capability, such as ``9.0``.
        memory: in bytes.
    """

    name: str
    compute: str
    memory: int


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver and what it drives.

    Attributes:
        cuda: the newest CUDA that it runs, such as ``13.0``; empty where there is none.
        gpus: in the driver's order, which ``CUDA_VISIBLE_DEVICES`` may restrict.
        trouble: why there is no GPU to use; empty where there is one.
    """

    cuda: str
    gpus: tuple[Gpu, ...]
    trouble: str


@cache
def driver() -> Driver:
    """The driver of this machine. Asked once for each process; never raises."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return Driver("", (), f"there is no NVIDIA driver here ({error})")
    if code := library.cuInit(0):
        return Driver("", (), f"the NVIDIA driver does not start: {_message(library, code)}")
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    library.cuDeviceGetCount(ctypes.byref(number))
    gpus = tuple(_gpu(library, index) for index in range(number.value))
    return Driver(version, gpus, "" if gpus else "the NVIDIA driver sees no GPU (is CUDA_VISIBLE_DEVICES empty?)")


class Stream:
    """A stream of a GPU, which lives until nothing refers to it.

    Attributes:
        handle: the driver's.
    """

    def __init__(self, device: int) -> None:
        made = ctypes.c_void_p()
        with _context(device) as library:
            _check(library, library.cuStreamCreate(ctypes.byref(made), _NON_BLOCKING), "make a stream")
        self.handle = made.value or 0
        weakref.finalize(self, _destroy, device, self.handle).atexit = False  # CUDA has gone by then, or goes with it


def synchronize(stream: int, device: int) -> None:
    """Wait until everything that was put on a stream is done.

    Raises:
        BackendFailed: the driver refuses, with its word for why.
    """
    with _context(device) as library:
        code = library.cuStreamSynchronize(ctypes.c_void_p(stream))
        _check(library, code, f"wait for stream {stream}")


def times(stream: int, device: int, work: Callable[[], object], runs: int) -> np.ndarray:
    """How long work takes on the device, by events put on its stream before and after it.

    Args:
        stream, device: where the work is put.
        work: puts it there; may wait for it.
        runs: how often.

    Returns:
        (runs,), float64, milliseconds. What the device waits for the host between the two events counts.

    Raises:
        BackendFailed: the driver refuses, with its word for why.
    """
    found = np.empty(runs)
    with _context(device) as library:
        ends = (ctypes.c_void_p(), ctypes.c_void_p())
        for event in ends:
            _check(library, library.cuEventCreate(ctypes.byref(event), 0), "make an event")
        try:
            took = ctypes.c_float()
            for run in range(runs):
                _check(library, library.cuEventRecord(ends[0], ctypes.c_void_p(stream)), "put an event on a stream")
                work()
                _check(library, library.cuEventRecord(ends[1], ctypes.c_void_p(stream)), "put an event on a stream")
                _check(library, library.cuEventSynchronize(ends[1]), "wait for an event")
                _check(library, library.cuEventElapsedTime(ctypes.byref(took), *ends), "say how long work took")
                found[run] = took.value
        finally:
            for event in ends:
                library.cuEventDestroy_v2(event)
    return found


def host_memory(nbytes: int, device: int) -> int:
    """The address of memory of the host that a GPU copies from and to by itself (pinned). It is not given back.

    Raises:
        BackendFailed: there is no more of it.
    """
    made = ctypes.c_void_p()
    with _context(device) as library:
        code = library.cuMemHostAlloc(ctypes.byref(made), ctypes.c_size_t(nbytes), _PORTABLE)
        _check(library, code, f"pin {nbytes} bytes of the host's memory")
    return made.value or 0


def copy_to_device(copies: Sequence[tuple[int, np.ndarray]], stream: int, device: int) -> None:
    """Put copies on a stream, of C-contiguous arrays in pinned memory to addresses on the device. The arrays are to
    stay as they are until the stream has come to them.

    Raises:
        BackendFailed: the driver refuses, with its word for why.
    """
    with _context(device) as library:
        for address, array in copies:
            source, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            code = library.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(address), source, size, ctypes.c_void_p(stream))
            _check(library, code, f"copy {array.nbytes} bytes to it")


def copy_to_host(array: np.ndarray, address: int, device: int) -> None:
    """Fill a C-contiguous array from the device, and wait for it. What writes there must be done.

    Raises:
        BackendFailed: the driver refuses, with its word for why.
    """
    target, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
    with _context(device) as library:
        _check(library, library.cuMemcpyDtoH_v2(target, ctypes.c_uint64(address), size), f"copy {array.nbytes} bytes")


@contextmanager
def _context(device: int) -> Iterator[ctypes.CDLL]:
    """Make a GPU's primary context, which all that uses CUDA's runtime shares, this thread's for a while."""
    library, primary = _primary(device)
    _check(library, library.cuCtxPushCurrent_v2(primary), f"take the context of GPU {device}")
    try:
        yield library
    finally:
        library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


@cache
def _primary(device: int) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """Kept for as long as the process lives, as CUDA's runtime does."""
    library = ctypes.CDLL(_LIBRARY)
    handle, made = ctypes.c_int(), ctypes.c_void_p()
    _check(library, library.cuInit(0), "start")
    _check(library, library.cuDeviceGet(ctypes.byref(handle), device), f"find GPU {device}")
    _check(library, library.cuDevicePrimaryCtxRetain(ctypes.byref(made), handle), f"open GPU {device}")
    return library, made


def _destroy(device: int, stream: int) -> None:
    with _context(device) as library:
        library.cuStreamDestroy_v2(ctypes.c_void_p(stream))


def _check(library: ctypes.CDLL, code: int, doing: str) -> None:
    if code:
        raise BackendFailed(f"The driver cannot {doing}: {_message(library, code)}")


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    parts = []
    for attribute in (_COMPUTE_MAJOR, _COMPUTE_MINOR):
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        parts.append(str(value.value))
    return Gpu(name.value.decode(), ".".join(parts), memory.value)


def _message(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    return f"{(text.value or b'').decode() or 'unknown error'} (CUDA error {code})"
