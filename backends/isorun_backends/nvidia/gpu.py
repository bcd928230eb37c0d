"""Choosing a GPU, and executables whose inputs and outputs may stay in its memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isorun.plugin import (
    ON_DEVICE,
    Availability,
    BackendUnavailable,
    Binding,
    DeviceArray,
    Executable,
    Feeds,
    InvalidFeeds,
    ModelInfo,
    Option,
)
from isorun_backends.nvidia import cuda_driver
from isorun_backends.nvidia.device_memory import DeviceMemory

DEVICE_ID = Option("index of the GPU", "int", default=0, minimum=0)
CUDA_GRAPHS = Option("how many input shapes to keep as CUDA graphs", "int", default=0, minimum=0)


def availability() -> Availability:
    """Whether the driver reports a GPU, and the names of all that it reports."""
    driver = cuda_driver.driver()
    if driver.problem:
        return Availability(False, driver.problem, "This backend needs an NVIDIA GPU and its driver.")
    return Availability(True, devices=tuple(gpu.name for gpu in driver.gpus))


def select(name: str, index: int) -> cuda_driver.Gpu:
    """The GPU of an index. Raises ``BackendUnavailable`` if there is none."""
    gpus = cuda_driver.driver().gpus
    if index >= len(gpus):
        raise BackendUnavailable(
            name, f"GPU {index} does not exist: the driver reports {len(gpus)}", "Set device_id, which counts from 0."
        )
    return gpus[index]


class GpuExecutable(Executable):
    """A model on one GPU, run through bindings."""

    def __init__(self, name: str, info: ModelInfo, index: int) -> None:
        self.name, self.info, self.index = name, info, index
        self.output_specs = {spec.name: spec for spec in info.outputs}

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        return self._run(output_names, feeds, None)

    def run_on_device(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[DeviceArray]:
        return self._run(output_names, feeds, ON_DEVICE)

    @abstractmethod
    def bind(self, feeds: Feeds, outputs: Mapping[str, Any]) -> Binding:
        """Bind arrays, as :meth:`isorun.plugin.SupportsBinding.bind`."""

    def _run(self, output_names: Sequence[str] | None, feeds: Feeds, target: Any) -> list[Any]:
        targets: Mapping[str, Any] = dict.fromkeys(output_names or self.output_specs, target)
        return self.bind(feeds, targets).run()


def check_device(what: str, array: DeviceArray, index: int) -> None:
    """Raise ``InvalidFeeds`` for an array on another GPU than that of an index, or whose library does not say on which
    of several it is."""
    if array.device_id is None and len(cuda_driver.driver().gpus) > 1:
        raise InvalidFeeds(
            f"{what} does not say on which GPU it is, and there are several. Pass an array with `__dlpack_device__`, "
            f"such as CuPy's or PyTorch's, or a DeviceArray with device_id={index}"
        )
    if array.device_id not in (None, index):
        raise InvalidFeeds(f"{what} is on GPU {array.device_id}; this session is on GPU {index}")


def input_address(name: str, array: DeviceArray, index: int, memory: Callable[[], DeviceMemory]) -> int:
    """The address of a feed on the GPU of an index, once the stream that it came with has written it.

    Args:
        memory: opens the GPU's memory, for feeds that come with a stream.

    Raises:
        InvalidFeeds: as :func:`check_device`.
        BackendUnavailable: it comes with a stream, and pycuda does not import.
    """
    check_device(f"Input {name!r}", array, index)
    if array.stream is not None:
        device = memory()
        with device.current():
            device.wait_for(array.stream)
    return array.address
