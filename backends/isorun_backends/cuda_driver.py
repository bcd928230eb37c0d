"""What is asked of the NVIDIA driver itself: ``libcuda`` through ctypes, so that no package is needed to know
whether there is a GPU, what it is called, and when a stream's work is done.

Read in NVIDIA's "CUDA Driver API" manual. Not run on hardware yet, save for the answer of a machine without a driver.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

from isorun.errors import BackendFailed

_LIBRARY = "libcuda.so.1"
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76  # CUdevice_attribute


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


def synchronize(stream: int) -> None:
    """Wait until everything that was put on a stream is done.

    Raises:
        BackendFailed: the driver refuses, with its word for why.
    """
    library = ctypes.CDLL(_LIBRARY)
    if code := library.cuStreamSynchronize(ctypes.c_void_p(stream)):
        raise BackendFailed(f"The driver cannot wait for stream {stream}: {_message(library, code)}")


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
