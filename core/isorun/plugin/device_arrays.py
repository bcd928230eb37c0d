"""Arrays in GPU memory, exchanged without copies.

Two protocols describe such arrays: ``__cuda_array_interface__`` (CuPy, PyTorch, Numba, pycuda's GPUArray) and
``__dlpack__`` (nearly all other libraries). Both are read with the standard library, so that no array library is
required. Arrays in host memory are returned unchanged.

Sources of the layouts: Numba's "CUDA Array Interface (Version 3)" and ``dlpack.h`` of DLPack 1.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Final

import numpy as np

from isorun.errors import InvalidFeeds
from isorun.types import Feeds

_CUDA, _CUDA_MANAGED = 2, 13  # DLDeviceType
_WITH_STREAMS = 3  # the version of __cuda_array_interface__ that has them
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # DLDataTypeCode; 4 is bfloat16, which NumPy lacks
DEFAULT_STREAM: Final = 1
"""The number of CUDA's legacy default stream in both protocols."""


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A C-contiguous array in GPU memory. It has ``__cuda_array_interface__``, which CuPy, PyTorch
    (``torch.as_tensor``) and Numba read without a copy.

    Attributes:
        address: the device address of its first element.
        shape, dtype: as in NumPy.
        device_id: the number of the GPU; ``None`` if the library that the array is from does not say.
        stream: the CUDA stream that computes its contents; ``None`` if they are complete.
        owner: the object that keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device_id: int | None = 0
    stream: int | None = None
    owner: Any = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return self.size * self.dtype.itemsize

    @cached_property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }


class OnDevice:
    """The type of :data:`ON_DEVICE`, which requests an output in new device memory from a binding."""

    def __repr__(self) -> str:
        return "ON_DEVICE"


ON_DEVICE: Final = OnDevice()


def adopt(feeds: Feeds) -> Feeds:
    """Convert feeds on a GPU to :class:`DeviceArray`, without copying.

    Raises:
        InvalidFeeds: an array on a GPU is not C-contiguous, is masked, or has a type that NumPy lacks.
    """
    return {name: value if isinstance(value, np.ndarray) else _adopt_one(name, value) for name, value in feeds.items()}


def is_on_device(value: object) -> bool:
    """Whether an object reports that it is on a GPU."""
    if isinstance(value, np.ndarray):
        return False
    return hasattr(value, "__cuda_array_interface__") or _dlpack_device(value)[0] in (_CUDA, _CUDA_MANAGED)


def _adopt_one(name: str, value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return value
    interface = getattr(value, "__cuda_array_interface__", None)
    by_dlpack = _dlpack_device(value)[0] in (_CUDA, _CUDA_MANAGED)
    # Versions before 3 have no stream; PyTorch implements version 2.
    if interface is not None and not (by_dlpack and interface.get("version", 0) < _WITH_STREAMS):
        return _from_interface(name, value, interface)
    return _from_dlpack(name, value) if by_dlpack else value


def _dlpack_device(value: object) -> tuple[int, int]:
    method = getattr(value, "__dlpack_device__", None)
    if method is None:
        return (0, 0)
    try:
        kind, number = method()
    except (BufferError, RuntimeError, TypeError, ValueError):  # PyTorch raises ValueError for its device `meta`
        return (0, 0)
    return int(kind), int(number)


def _from_interface(name: str, value: Any, interface: Mapping[str, Any]) -> DeviceArray:
    if interface.get("mask") is not None:
        raise InvalidFeeds(f"Input {name!r} is a masked array on the device. Pass an array without a mask")
    shape = tuple(int(size) for size in interface["shape"])
    dtype = np.dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is not None:
        _check_strides(name, shape, tuple(stride // dtype.itemsize for stride in strides))
    address = int(interface["data"][0] or 0)
    kind, number = _dlpack_device(value)
    device = number if kind in (_CUDA, _CUDA_MANAGED) else None  # the interface itself has no number
    stream = interface.get("stream") if interface.get("version", 0) >= _WITH_STREAMS else DEFAULT_STREAM
    return DeviceArray(address, shape, dtype, device, stream, value)


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _from_dlpack(name: str, value: Any) -> DeviceArray:
    # With the default stream, the producer makes its work visible to that stream.
    capsule = value.__dlpack__(stream=DEFAULT_STREAM)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    # The array keeps the unconsumed capsule, whose destructor releases the memory.
    tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    kind, lanes = _KINDS.get(tensor.dtype.code), tensor.dtype.lanes
    if kind is None or lanes != 1 or tensor.dtype.bits % 8:
        raise InvalidFeeds(
            f"Input {name!r} on the device has a type that NumPy lacks (DLPack code {tensor.dtype.code}, "
            f"{tensor.dtype.bits} bits, {lanes} lanes). Convert it to the input's type"
        )
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if tensor.strides:
        _check_strides(name, shape, tuple(tensor.strides[axis] for axis in range(tensor.ndim)))
    dtype = np.dtype(f"{kind}{tensor.dtype.bits // 8}")
    address = (tensor.data or 0) + tensor.byte_offset
    return DeviceArray(address, shape, dtype, tensor.device.id, DEFAULT_STREAM, (value, capsule))


def _check_strides(name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Reject arrays that are not contiguous; ``strides`` are in elements."""
    if 0 in shape:
        return
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            raise InvalidFeeds(
                f"Input {name!r} on the device is not C-contiguous (strides of {strides} elements for shape {shape}). "
                "Make a contiguous copy"
            )
        expected *= size
