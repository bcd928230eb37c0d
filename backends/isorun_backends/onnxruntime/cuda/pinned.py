"""Memory of the host that a GPU copies to by itself (pinned): twice as fast as any other, and slow to come by.

So it is kept. An array made of it is the caller's; when nothing refers to it any more, the memory goes to the next one
of its size. Not run on hardware yet.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from isorun_backends import cuda_driver

_LEAST = 4096  # bytes


class Pinned:
    """Arrays for one GPU. As much memory is pinned as was ever held at once, in sizes of powers of two.

    Args:
        device: the number of the GPU.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # addresses by size

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """An array whose contents are not set."""
        size = max(_LEAST, 1 << (prod(shape) * dtype.itemsize - 1).bit_length())
        free = self._free[size]
        try:
            address = free.pop()  # atomic, as append is
        except IndexError:
            address = cuda_driver.host_memory(size, self._device)
        memory = (ctypes.c_char * size).from_address(address)
        weakref.finalize(memory, free.append, address).atexit = False
        return np.ndarray(shape, dtype, memoryview(memory))

    def fetch(self, address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """A copy of what lies on the device, once all that writes it is done."""
        array = self.array(shape, dtype)
        if array.size:
            cuda_driver.copy_to_host(array, address, self._device)
        return array
