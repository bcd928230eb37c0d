"""Sessions on the tensorrt backend and arrays in fake device memory, for its tests."""

import numpy as np

import fake_device_memory
import isorun
from isorun.plugin.device_arrays import DeviceArray


def open_session(model, cache_dir, **options):
    options.setdefault("shapes", ["1..4x1..16"])
    return isorun.Session(model, backend="tensorrt", options=options, cache_dir=cache_dir, padding="keep")


def expected(bert, feeds):
    return isorun.Session(bert, backend="ort-cpu", threads=1, padding="keep").run(None, feeds)


def assert_close(results, references):
    for result, reference in zip(results, references, strict=True):
        np.testing.assert_allclose(result, reference, atol=1e-5)


def on_device(array, offset=0):
    """A copy of an array in fake device memory, at an offset from an aligned address."""
    memory = np.zeros(array.nbytes + 512, np.uint8)
    address = -(-memory.ctypes.data // 256) * 256 + offset
    fake_device_memory.at(address, array.shape, array.dtype)[...] = array
    return DeviceArray(address, array.shape, array.dtype, owner=memory)


def to_host(array):
    return fake_device_memory.at(array.address, array.shape, array.dtype).copy()
