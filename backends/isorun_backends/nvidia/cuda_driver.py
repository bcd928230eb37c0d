"""Which GPUs the NVIDIA driver (``libcuda``) reports. Needs no Python package, so that every machine can be described.

Written from NVIDIA's "CUDA Driver API" manual and tested against a fake ``libcuda`` and on an H200.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

_LIBRARY = "libcuda.so.1"
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76  # CUdevice_attribute


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


class _CallFailed(Exception):
    """A call returned an error code."""


@cache
def driver() -> Driver:
    """The driver of this machine, queried once per process. Never raises."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return Driver("", (), f"no NVIDIA driver is installed ({error})")
    try:
        _call(library, "start", library.cuInit, 0)
        number = ctypes.c_int()
        _call(library, "report its version", library.cuDriverGetVersion, ctypes.byref(number))
        version = f"{number.value // 1000}.{number.value % 1000 // 10}"
        _call(library, "count its GPUs", library.cuDeviceGetCount, ctypes.byref(number))
        gpus = tuple(_gpu(library, index) for index in range(number.value))
    except _CallFailed as error:
        return Driver("", (), str(error))
    return Driver(version, gpus, "" if gpus else "the NVIDIA driver reports no GPU (is CUDA_VISIBLE_DEVICES empty?)")


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    doing = f"describe GPU {index}"
    _call(library, doing, library.cuDeviceGet, ctypes.byref(device), index)
    _call(library, doing, library.cuDeviceGetName, name, len(name), device)
    _call(library, doing, library.cuDeviceTotalMem_v2, ctypes.byref(memory), device)
    compute = []
    for attribute in (_COMPUTE_MAJOR, _COMPUTE_MINOR):
        value = ctypes.c_int()
        _call(library, doing, library.cuDeviceGetAttribute, ctypes.byref(value), attribute, device)
        compute.append(str(value.value))
    return Gpu(name.value.decode(), ".".join(compute), memory.value)


def _call(library: ctypes.CDLL, doing: str, function: Any, *arguments: Any) -> None:
    if code := function(*arguments):
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(text))
        message = (text.value or b"").decode() or "unknown error"
        raise _CallFailed(f"the NVIDIA driver cannot {doing}: {message} (CUDA error {code})")
