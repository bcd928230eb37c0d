"""Host memory as device memory; rejects calls outside the device's context."""

import ctypes
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

ALIGNED = 256  # required alignment of addresses
_inside_of = threading.local()


def is_inside():
    """Whether this thread is in the device's context."""
    return bool(getattr(_inside_of, "depth", 0))


def at(address, shape, dtype):
    """The array at an address of the host."""
    size = int(np.prod(shape)) * dtype.itemsize
    return np.ndarray(tuple(shape), dtype, memoryview((ctypes.c_char * size).from_address(address)))


class HostMemory:
    """``isorun_backends.nvidia.device_memory.DeviceMemory`` in host memory.

    Attributes:
        allocated: bytes on the device, ever.
        copied: the number of copies on the device.
        waited: the streams of other libraries that were waited for.
    """

    def __init__(self):
        self.allocated, self.copied, self.waited = 0, 0, []

    @contextmanager
    def current(self):
        _inside_of.depth = getattr(_inside_of, "depth", 0) + 1
        try:
            yield
        finally:
            _inside_of.depth -= 1

    def __getattribute__(self, name):
        if name in HostMemory.__dict__ and not name.startswith("_") and name != "current":
            assert is_inside(), "outside current()"
        return super().__getattribute__(name)

    def stream(self):
        return 7

    def allocate(self, nbytes):
        self.allocated += nbytes
        held = np.zeros(nbytes + ALIGNED, np.uint8)
        return SimpleNamespace(address=-(-held.ctypes.data // ALIGNED) * ALIGNED, held=held)

    def pinned(self, shape, dtype):
        return np.empty(shape, dtype)

    def to_device(self, address, array, stream):
        assert array.flags.c_contiguous
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def to_host(self, array, address, stream):
        assert array.flags.c_contiguous
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy(self, to, source, nbytes, stream):
        ctypes.memmove(to, source, nbytes)
        self.copied += 1

    def synchronize(self, stream):
        assert stream == 7

    def wait_for(self, stream):
        self.waited.append(stream)

    def times(self, stream, work, runs):
        for _ in range(runs):
            work()
        return np.full(runs, 0.25)
