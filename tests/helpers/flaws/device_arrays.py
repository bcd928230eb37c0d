"""Flaws with arrays that stay on a device, which is simulated in the host's memory."""

import ctypes
from dataclasses import replace

import numpy as np

from flaws.base import HONEST, Flawed, backend
from isorun.plugin.backend import Binding
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray


def _at(array: DeviceArray) -> np.ndarray:
    memory = (ctypes.c_char * array.nbytes).from_address(array.address)
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def _left(array: np.ndarray) -> DeviceArray:
    return DeviceArray(array.ctypes.data, array.shape, array.dtype, owner=array)


class OnDevice(Flawed):
    capabilities = replace(HONEST, device_arrays=True)

    def run(self, output_names, feeds):
        fed = {name: _at(array) if isinstance(array, DeviceArray) else array for name, array in feeds.items()}
        return self.right(output_names, fed)

    def run_on_device(self, output_names, feeds):
        return [_left(array) for array in self.run(output_names, feeds)]

    def bind(self, feeds, outputs):
        assert all(array is ON_DEVICE for array in outputs.values())
        return Bound(self, feeds, list(outputs))


class Bound(Binding):
    def __init__(self, executable, feeds, names):
        self.executable, self.feeds, self.names = executable, feeds, names

    def run(self):
        return self.executable.run_on_device(self.names, self.feeds)


HonestOnDevice = backend(OnDevice)


@backend
class ClaimsDeviceArrays(Flawed):
    capabilities = replace(HONEST, device_arrays=True)


@backend
class CopiesToTheHost(OnDevice):
    def run_on_device(self, output_names, feeds):
        return self.run(output_names, feeds)


@backend
class ReusesDeviceMemory(OnDevice):
    def run_on_device(self, output_names, feeds):
        results = self.run(output_names, feeds)
        if self.kept is None:
            self.kept = results
        for kept, result in zip(self.kept, results, strict=True):
            kept[...] = result
        return [_left(array) for array in self.kept]


@backend
class BindsTheFirstFeed(OnDevice):
    """Bindings run on the first feeds that were on the device."""

    def run_on_device(self, output_names, feeds):
        self.kept = self.kept or feeds
        return super().run_on_device(output_names, feeds)

    def bind(self, feeds, outputs):
        return Bound(self, self.kept or feeds, list(outputs))
