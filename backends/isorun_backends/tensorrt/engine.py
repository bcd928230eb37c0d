"""Running engines: the profile that a shape falls into, and the context that takes it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, IsorunError
from isorun.plugin.backend import Binding, Executable, check_fits, runtime_errors
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray
from isorun.types import Feeds, ModelInfo, RuntimeReport
from isorun_backends import cuda_driver
from isorun_backends.output_shapes import output_shapes, sizes_of
from isorun_backends.tensorrt.api import Module
from isorun_backends.tensorrt.loaded import Loaded
from isorun_backends.tensorrt.memory import Memory
from isorun_backends.tensorrt.profiles import Profile, observed, select
from isorun_backends.tensorrt.slots import Key, Shapes, Slot


class TensorRTExecutable(Executable):
    """A model as one or more engines.

    Args:
        name: the backend's.
        trt: TensorRT.
        info: the model's inputs and outputs.
        first: the engine that was asked for.
        memory: the device's.
        device: its number.
        make: builds and loads an engine for profiles, for shapes outside the first one's; ``None`` where such a shape
            is an error.
        describe: makes the report of what the engine says of its layers.
        graphs: how many shapes to keep as CUDA graphs.
    """

    def __init__(
        self,
        name: str,
        trt: Module,
        info: ModelInfo,
        first: Loaded,
        memory: Memory,
        device: int,
        make: Callable[[Sequence[Profile]], Loaded] | None,
        describe: Callable[[Mapping[str, int], Mapping[str, Any]], RuntimeReport],
        *,
        graphs: int = 0,
    ) -> None:
        self._name, self._trt, self._info, self._memory = name, trt, info, memory
        self._device, self._make, self._describe, self._most = device, make, describe, graphs
        self._engines = [first]
        self._idle: dict[Key, list[Slot]] = {}
        self._recorded: set[Shapes] = set()
        self._outputs = [spec.name for spec in info.outputs]
        self._lock = threading.Lock()
        self._closed = False
        self._building: threading.Thread | None = None
        self._trouble = ""

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        return self.run_into(dict.fromkeys(output_names or self._outputs), feeds)

    def run_on_device(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[DeviceArray]:
        return self.run_into(dict.fromkeys(output_names or self._outputs, ON_DEVICE), feeds)

    def bind(self, feeds: Feeds, outputs: Mapping[str, Any]) -> Binding:
        return TensorRTBinding(self, feeds, outputs)

    def run_into(self, wanted: Mapping[str, Any], feeds: Feeds) -> list[Any]:
        """Run once, with each output where it is wanted: :meth:`isorun.plugin.backend.Executable.bind` says how."""
        place = self._key(feeds, record=not any(map(_is_on_device, wanted.values())))
        with runtime_errors(f"{self._name} failed while running"), self._memory.current():
            if any(each is not None for each in wanted.values()):
                wanted = self._places(wanted, feeds)
            slot = self._take(place)
            results = slot.run(feeds, wanted)
            self._give(place, slot)  # a slot whose run failed is not used again
        return results

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        place = self._key(feeds, record=True)
        with runtime_errors(f"{self._name} failed while running"), self._memory.current():
            slot = self._take(place)
            slot.enqueue(feeds, {})
            self._memory.synchronize(slot.stream)
            found = cuda_driver.times(slot.stream, self._device, slot.launch or slot.execute, runs)
            self._give(place, slot)
        return found

    def report(self) -> RuntimeReport:
        with runtime_errors(f"{self._name} does not say what it runs"):
            said = self._engines[0].description(self._trt.LayerInformationFormat.JSON)
        details: dict[str, Any] = {
            "profiles": [str(profile) for loaded in self._engines for profile in loaded.profiles],
            "memory": self._memory.name,
        }
        try:
            layers = json.loads(said).get("Layers", [])
        except ValueError as error:  # an engine that runs is not refused for how it is described
            layers, details["layers"] = [], f"TensorRT's description of them is no JSON: {error}"
        kinds = Counter(each.get("LayerType", "?") if isinstance(each, dict) else "layer" for each in layers)
        return self._describe(dict(kinds.most_common()), details)

    def close(self) -> None:
        self._closed = True
        if self._building is not None:
            self._building.join()
        with self._memory.current():  # pycuda lets go of memory in its own context alone
            self._idle, self._engines = {}, []

    def _place(self, feeds: Feeds) -> tuple[int, int]:
        """Which engine, and which of its profiles."""
        engines = list(self._engines)
        if not engines:
            raise BackendFailed(f"{self._name}: the session was closed")
        everything = [
            (number, index, profile)
            for number, loaded in enumerate(engines)
            for index, profile in enumerate(loaded.profiles)
        ]
        sizes = sizes_of(self._info, feeds)
        try:
            number, index, _ = everything[select([profile for _, _, profile in everything], sizes)]
        except InvalidFeeds as error:
            if self._make is None:
                raise
            trouble = self._trouble
            self._build_aside(sizes)
            raise BackendUnavailable(
                self._name,
                f"an engine for {' '.join(f'{key}={size}' for key, size in sizes.items())} is being built"
                + (f" (an earlier one could not be: {trouble})" if trouble else ""),
                "Ask again later, or declare the shape beforehand with options={'shapes': [...]}.",
            ) from error
        return number, index

    def _build_aside(self, sizes: Mapping[str, int]) -> None:
        """Build an engine on a thread, one at a time; a shape that comes meanwhile has to come again."""
        make = self._make
        assert make is not None

        def work() -> None:
            try:
                with runtime_errors(f"{self._name} cannot build an engine"), self._memory.current():
                    self._engines.append(make(observed([sizes], self._info.limits)))
            except IsorunError as error:
                self._trouble = str(error)

        with self._lock:
            if self._building is None or not self._building.is_alive():
                self._building = threading.Thread(target=work, name="isorun-tensorrt-build", daemon=True)
                self._building.start()

    def _key(self, feeds: Feeds, *, record: bool) -> Key:
        """What runs these feeds: a context for their shapes alone, where they are to be recorded and may be."""
        place = self._place(feeds)
        shapes: Shapes = tuple(tuple(feeds[spec.name].shape) for spec in self._info.inputs)
        in_buffers = record and all(isinstance(array, np.ndarray) for array in feeds.values())
        with self._lock:
            if in_buffers and len(self._recorded) < self._most:
                self._recorded.add(shapes)
            kept = in_buffers and shapes in self._recorded
        return Key(*place, shapes if kept else None)

    def _take(self, place: Key) -> Slot:
        try:
            return self._idle.setdefault(place, []).pop()
        except IndexError:
            loaded = self._engines[place.engine]
            return Slot(self._name, loaded, place, self._info, self._memory, self._device)

    def _give(self, place: Key, slot: Slot) -> None:
        if not self._closed:
            self._idle[place].append(slot)

    def _places(self, wanted: Mapping[str, Any], feeds: Feeds) -> dict[str, Any]:
        """Memory for what is to be new on the device, and what was given, if it is of the right shape and type."""
        found: dict[str, Any] = {}
        shapes = output_shapes(self._info, sizes_of(self._info, feeds))
        for name, each in wanted.items():
            shape, dtype = shapes[name]
            found[name] = each
            if each is ON_DEVICE:
                own = self._memory.allocate(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
                found[name] = DeviceArray(own.address, shape, dtype, self._device, owner=own)
            elif each is not None:
                check_fits(name, each, shape, dtype)
        return found


class TensorRTBinding(Binding):
    """Arrays tied to inputs and outputs, on the device or in host memory."""

    def __init__(self, executable: TensorRTExecutable, feeds: Feeds, outputs: Mapping[str, Any]) -> None:
        super().__init__(executable, feeds, outputs)
        self._run = partial(executable.run_into, outputs, feeds)

    def run(self) -> list[Any]:
        return self._run()


def _is_on_device(wanted: Any) -> bool:
    return wanted is ON_DEVICE or isinstance(wanted, DeviceArray)
