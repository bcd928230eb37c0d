"""Running engines: the profile that a shape falls into, and the context that takes it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from isorun.backend import Executable, runtime_errors
from isorun.device_arrays import DeviceArray
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, IsorunError
from isorun.types import Feeds, ModelInfo, RuntimeReport
from isorun_backends import cuda_driver
from isorun_backends.output_shapes import output_shapes, sizes_of
from isorun_backends.tensorrt import memory as memories
from isorun_backends.tensorrt.api import Engine, Module
from isorun_backends.tensorrt.memory import Memory
from isorun_backends.tensorrt.profiles import Profile, observed, select
from isorun_backends.tensorrt.slots import Buffer, Key, Shapes, Slot


class Loaded:
    """An engine and the profiles that it was built for."""

    def __init__(self, engine: Engine, profiles: Sequence[Profile]) -> None:
        self.engine = engine
        self.profiles = list(profiles)


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
        self._building: threading.Thread | None = None
        self._trouble = ""

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        names = list(output_names or self._outputs)
        place = self._key(feeds, record=True)
        with runtime_errors(f"{self._name} failed while running"), self._memory.current():
            slot = self._take(place)
            shapes = self._enqueue(slot, place, feeds)
            for name in names:
                buffer = slot.outputs[name]
                self._memory.to_host(buffer.host(shapes[name]), buffer.device.address, slot.stream)
            self._memory.synchronize(slot.stream)
            results: list[Any] = [slot.outputs[name].host(shapes[name]).copy() for name in names]
            self._idle[place].append(slot)  # a slot whose run failed is not used again
        return results

    def run_on_device(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[DeviceArray]:
        names = list(output_names or self._outputs)
        place = self._key(feeds, record=False)
        with runtime_errors(f"{self._name} failed while running"), self._memory.current():
            slot = self._take(place)
            shapes = output_shapes(self._info, sizes_of(self._info, feeds))
            made = {}
            for name in names:
                shape, dtype = shapes[name]
                own = self._memory.allocate(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
                made[name] = DeviceArray(own.address, shape, dtype, self._device, owner=own)
            self._enqueue(slot, place, feeds, made)
            self._memory.synchronize(slot.stream)
            self._idle[place].append(slot)
        return [made[name] for name in names]

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        place = self._key(feeds, record=True)
        with runtime_errors(f"{self._name} failed while running"), self._memory.current():
            slot = self._take(place)
            self._enqueue(slot, place, feeds)
            self._memory.synchronize(slot.stream)
            again = slot.launch or partial(self._execute, slot)
            found = cuda_driver.times(slot.stream, self._device, again, runs)
            self._idle[place].append(slot)
        return found

    def report(self) -> RuntimeReport:
        with runtime_errors(f"{self._name} does not say what it runs"):
            inspector = self._engines[0].engine.create_engine_inspector()
            layers = json.loads(inspector.get_engine_information(self._trt.LayerInformationFormat.JSON)).get(
                "Layers", []
            )
        kinds = Counter(each.get("LayerType", "?") if isinstance(each, dict) else "layer" for each in layers)
        profiles = [str(profile) for loaded in self._engines for profile in loaded.profiles]
        return self._describe(dict(kinds.most_common()), {"profiles": profiles, "memory": self._memory.name})

    def close(self) -> None:
        if self._building is not None:
            self._building.join()
        with self._memory.current():  # pycuda lets go of memory in its own context alone
            self._idle, self._engines = {}, []

    def _place(self, feeds: Feeds) -> tuple[int, int]:
        """Which engine, and which of its profiles."""
        engines = list(self._engines)
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
            self._build_aside(sizes)
            raise BackendUnavailable(
                self._name,
                f"an engine for {' '.join(f'{key}={size}' for key, size in sizes.items())} is being built"
                + (f" (an earlier one could not be: {self._trouble})" if self._trouble else ""),
                "Ask again later, or declare the shape beforehand with options={'shapes': [...]}.",
            ) from error
        return number, index

    def _build_aside(self, sizes: Mapping[str, int]) -> None:
        """Build an engine on a thread, one at a time; a shape that comes meanwhile has to come again."""
        make = self._make
        assert make is not None

        def work() -> None:
            try:
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
        idle = self._idle.setdefault(place, [])
        try:
            return idle.pop()
        except IndexError:
            loaded = self._engines[place.engine]
            profile = loaded.profiles[place.profile]
            return Slot(self._name, loaded.engine, place.profile, profile, self._info, self._memory)

    def _enqueue(
        self, slot: Slot, place: Key, feeds: Feeds, outputs: Mapping[str, DeviceArray] | None = None
    ) -> dict[str, tuple[int, ...]]:
        """Put one run on the slot's stream; the shapes of its outputs."""
        addresses = {name: self._feed(slot, name, buffer, feeds[name]) for name, buffer in slot.inputs.items()}
        if slot.launch is not None:
            slot.launch()
            return slot.shapes
        for name, address in addresses.items():
            shape = tuple(feeds[name].shape)
            self._ask(slot.context.set_input_shape(name, shape), f"take {name!r} of {shape}")
            self._ask(slot.context.set_tensor_address(name, address), f"read {name!r}")
        for name, buffer in slot.outputs.items():
            given = (outputs or {}).get(name)
            address = buffer.device.address if given is None else given.address
            self._ask(slot.context.set_tensor_address(name, address), f"write {name!r}")
            slot.shapes[name] = tuple(int(size) for size in slot.context.get_tensor_shape(name))
        self._execute(slot)
        if place.shapes is not None:  # TensorRT asks for a run as it is, before
            slot.launch = memories.capture(self._name, slot.stream, lambda: self._execute(slot))
        return slot.shapes

    def _feed(self, slot: Slot, name: str, buffer: Buffer, array: np.ndarray | DeviceArray) -> int:
        """The address on the device where a feed is, or will be when the stream comes to it."""
        if isinstance(array, DeviceArray):
            if array.device_id != self._device:
                raise InvalidFeeds(f"Input {name!r} is on GPU {array.device_id}; this session is on GPU {self._device}")
            if array.stream is not None:
                cuda_driver.synchronize(array.stream, array.device_id)
            return array.address
        host = buffer.host(array.shape)
        np.copyto(host, array)
        self._memory.to_device(buffer.device.address, host, slot.stream)
        return buffer.device.address

    def _execute(self, slot: Slot) -> None:
        self._ask(slot.context.execute_async_v3(slot.stream), "run")

    def _ask(self, done: bool, what: str) -> None:
        if not done:
            raise BackendFailed(f"{self._name} cannot {what}")
