"""Sessions on TensorRT's backend, and arrays in what plays the device's memory, for its tests."""

from __future__ import annotations

import numpy as np

import fake_device_memory
import isorun
from isorun.plugin.device_arrays import DeviceArray


def opened(model, cache_dir, **options):
    options.setdefault("shapes", ["1..4x1..16"])
    return isorun.Session(model, backend="tensorrt", options=options, cache_dir=cache_dir, padding="keep")


def expected(bert, feeds):
    return isorun.Session(bert, backend="ort-cpu", threads=1, padding="keep").run(None, feeds)


def assert_close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def on_device(array, off=0):
    """An array in what plays the device's memory, as far from an aligned address as is asked."""
    held = np.zeros(array.nbytes + 512, np.uint8)
    address = -(-held.ctypes.data // 256) * 256 + off
    fake_device_memory.at(address, array.shape, array.dtype)[...] = array
    return DeviceArray(address, array.shape, array.dtype, owner=held)


def back(found):
    return fake_device_memory.at(found.address, found.shape, found.dtype).copy()
