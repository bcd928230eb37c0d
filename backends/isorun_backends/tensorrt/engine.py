"""Running engines: contexts, their buffers, and the profile that a shape falls into.

A context is not to be used from two threads, so each run takes one that is idle, or makes one: as many come to be as
runs were ever in flight at once. Each is tied to one profile and has a stream and buffers for that profile's greatest
shapes, so that addresses stay what they are and graphs can be recorded.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from isorun.backend import Executable, runtime_errors
from isorun.device_arrays import DeviceArray
from isorun.errors import BackendFailed, BackendUnavailable, InvalidFeeds, IsorunError
from isorun.types import Feeds, ModelInfo, RuntimeReport
from isorun_backends import cuda_driver
from isorun_backends.output_shapes import output_shapes, sizes_of
from isorun_backends.tensorrt import memory as memories
from isorun_backends.tensorrt.api import Context, Engine, Module
from isorun_backends.tensorrt.memory import Allocation, Memory
from isorun_backends.tensorrt.profiles import Profile, observed, select


class Loaded:
    """An engine and the profiles that it was built for."""

    def __init__(self, engine: Engine, profiles: Sequence[Profile]) -> None:
        self.engine = engine
        self.profiles = list(profiles)


class Slot:
    """One context on one profile, with its stream and buffers. Used by one run at a time."""

    def __init__(
        self, name: str, engine: Engine, index: int, profile: Profile, info: ModelInfo, memory: Memory
    ) -> None:
        context = engine.create_execution_context()
        if context is None:
            raise BackendFailed(f"{name} has no memory on the device for another context")
        self.context: Context = context
        self.stream = memory.stream()
        self.graphs: dict[tuple[tuple[int, ...], ...], Callable[[], None]] = {}
        if not context.set_optimization_profile_async(index, self.stream):
            raise BackendFailed(f"{name} cannot take the profile {profile}")
        most = {symbol: size[2] for symbol, size in profile.sizes.items()}
        self.inputs = {
            spec.name: _Buffer(memory, _sized(spec.shape, most), spec.dtype)
            for spec in info.inputs
            if spec.dtype is not None
        }
        self.outputs = {
            output: _Buffer(memory, shape, dtype) for output, (shape, dtype) in output_shapes(info, most).items()
        }


class _Buffer:
    """Memory for one tensor: on the device, and beside it in the host for copies."""

    def __init__(self, memory: Memory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        size = int(np.prod(shape, dtype=np.int64))
        self.device: Allocation = memory.allocate(size * dtype.itemsize)
        self._host = memory.pinned((size,), dtype)

    def host(self, shape: Sequence[int]) -> np.ndarray:
        """The host's side, as much of it as a shape needs."""
        return self._host[: int(np.prod(shape, dtype=np.int64))].reshape(shape)


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
        graphs: whether to record each shape as a CUDA graph.
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
        graphs: bool = False,
    ) -> None:
        self._name, self._trt, self._info, self._memory = name, trt, info, memory
        self._device, self._make, self._describe, self._record = device, make, describe, graphs
        self._engines = [first]
        self._idle: dict[tuple[int, int], list[Slot]] = {}
        self._outputs = [spec.name for spec in info.outputs]
        self._lock = threading.Lock()
        self._building: threading.Thread | None = None
        self._trouble = ""

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[Any]:
        names = list(output_names or self._outputs)
        place = self._place(feeds)
        with runtime_errors(f"{self._name} failed while running"), self._memory.current():
            slot = self._take(place)
            shapes = self._enqueue(slot, feeds)
            for name in names:
                buffer = slot.outputs[name]
                self._memory.to_host(buffer.host(shapes[name]), buffer.device.address, slot.stream)
            self._memory.synchronize(slot.stream)
            results: list[Any] = [slot.outputs[name].host(shapes[name]).copy() for name in names]
            self._idle[place].append(slot)  # a slot whose run failed is not used again
        return results

    def run_on_device(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[DeviceArray]:
        names = list(output_names or self._outputs)
        place = self._place(feeds)
        with runtime_errors(f"{self._name} failed while running"), self._memory.current():
            slot = self._take(place)
            shapes = output_shapes(self._info, sizes_of(self._info, feeds))
            made = {}
            for name in names:
                shape, dtype = shapes[name]
                own = self._memory.allocate(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
                made[name] = DeviceArray(own.address, shape, dtype, self._device, owner=own)
            self._enqueue(slot, feeds, made)
            self._memory.synchronize(slot.stream)
            self._idle[place].append(slot)
        return [made[name] for name in names]

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        place = self._place(feeds)
        with runtime_errors(f"{self._name} failed while running"), self._memory.current():
            slot = self._take(place)
            self._enqueue(slot, feeds)
            self._memory.synchronize(slot.stream)
            again = slot.graphs[_shape(slot, feeds)] if self._record else lambda: self._execute(slot)
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

    def _take(self, place: tuple[int, int]) -> Slot:
        idle = self._idle.setdefault(place, [])
        try:
            return idle.pop()
        except IndexError:
            loaded = self._engines[place[0]]
            profile = loaded.profiles[place[1]]
            return Slot(self._name, loaded.engine, place[1], profile, self._info, self._memory)

    def _enqueue(
        self, slot: Slot, feeds: Feeds, outputs: Mapping[str, DeviceArray] | None = None
    ) -> dict[str, tuple[int, ...]]:
        """Put one run on the slot's stream; the shapes of its outputs."""
        elsewhere = bool(outputs)
        for name, buffer in slot.inputs.items():
            array = feeds[name]
            address = buffer.device.address
            if isinstance(array, DeviceArray):
                if array.stream is not None:
                    cuda_driver.synchronize(array.stream, array.device_id)
                address, elsewhere = array.address, True
            else:
                host = buffer.host(array.shape)
                np.copyto(host, array)
                self._memory.to_device(address, host, slot.stream)
            self._ask(slot.context.set_input_shape(name, tuple(array.shape)), f"take {name!r} of {array.shape}")
            self._ask(slot.context.set_tensor_address(name, address), f"read {name!r}")
        shapes = {}
        for name, buffer in slot.outputs.items():
            given = (outputs or {}).get(name)
            address = buffer.device.address if given is None else given.address
            self._ask(slot.context.set_tensor_address(name, address), f"write {name!r}")
            shapes[name] = tuple(int(size) for size in slot.context.get_tensor_shape(name))
        if self._record and not elsewhere:
            self._launch(slot, _shape(slot, feeds))
        else:
            self._execute(slot)
        return shapes

    def _execute(self, slot: Slot) -> None:
        self._ask(slot.context.execute_async_v3(slot.stream), "run")

    def _launch(self, slot: Slot, shape: tuple[tuple[int, ...], ...]) -> None:
        """Run a shape once as it is, as TensorRT asks, then record it and start the record from then on."""
        launch = slot.graphs.get(shape)
        if launch is not None:
            launch()
            return
        self._execute(slot)
        slot.graphs[shape] = memories.capture(self._name, slot.stream, lambda: self._execute(slot))

    def _ask(self, done: bool, what: str) -> None:
        if not done:
            raise BackendFailed(f"{self._name} cannot {what}")


def _shape(slot: Slot, feeds: Feeds) -> tuple[tuple[int, ...], ...]:
    """What a slot's graphs are kept by."""
    return tuple(tuple(feeds[name].shape) for name in slot.inputs)


def _sized(shape: Sequence[int | str | None] | None, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else sizes[size or ""] for size in shape or ())
