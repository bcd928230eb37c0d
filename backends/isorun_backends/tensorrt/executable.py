"""Running engines: each run takes the profile of its shape and a context on that profile."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from isorun.plugin import (
    ON_DEVICE,
    BackendFailed,
    BackendUnavailable,
    Binding,
    DeviceArray,
    Feeds,
    InvalidFeeds,
    IsorunError,
    ModelInfo,
    RuntimeReport,
    check_fits,
    runtime_errors,
)
from isorun_backends.nvidia.device_memory import DeviceMemory
from isorun_backends.nvidia.gpu import GpuExecutable
from isorun_backends.nvidia.output_shapes import output_shapes, sizes_of
from isorun_backends.nvidia.shape_profiles import Profile, observed, select
from isorun_backends.tensorrt.context_pool import ContextPool
from isorun_backends.tensorrt.engine import Engine
from isorun_backends.tensorrt.execution_contexts import ContextKey, ExecutionContext, Shapes


class TensorRTExecutable(GpuExecutable):
    """A model as one or more engines.

    Args:
        engine: the engine for the declared shapes.
        make_engine: builds and loads an engine for shapes outside the first engine's; ``None`` if such a shape is an
            error.
        make_report: makes the report from counts of layers and details.
        contexts: the maximum number of runs of a profile at once.
        graphs: how many shapes to keep as CUDA graphs.
    """

    def __init__(
        self,
        name: str,
        trt: Any,
        info: ModelInfo,
        engine: Engine,
        memory: DeviceMemory,
        index: int,
        make_engine: Callable[[Sequence[Profile]], Engine] | None,
        make_report: Callable[[Mapping[str, int], Mapping[str, Any]], RuntimeReport],
        *,
        contexts: int,
        graphs: int = 0,
    ) -> None:
        super().__init__(name, info, index)
        self._trt, self._memory, self._max_graphs = trt, memory, graphs
        self._make_engine, self._make_report = make_engine, make_report
        self._engines = [engine]
        self._contexts = ContextPool(name, self._create_context, contexts)
        self._recorded: set[Shapes] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._building: threading.Thread | None = None
        self._build_problem = ""

    def bind(self, feeds: Feeds, outputs: Mapping[str, Any]) -> Binding:
        return TensorRTBinding(self, feeds, outputs)

    def run_into(self, targets: Mapping[str, Any], feeds: Feeds) -> list[Any]:
        """Run once, with each output where :meth:`isorun.plugin.backend.Executable.bind` puts it."""
        on_device = any(target is ON_DEVICE or isinstance(target, DeviceArray) for target in targets.values())
        key = self._key(feeds, record=not on_device)
        with runtime_errors(f"{self.name} failed while running"), self._memory.current():
            if any(target is not None for target in targets.values()):
                targets = self._allocate(targets, feeds)
            with self._contexts.taken(key) as context:
                return context.run(feeds, targets)

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        key = self._key(feeds, record=True)
        with (
            runtime_errors(f"{self.name} failed while running"),
            self._memory.current(),
            self._contexts.taken(key) as context,
        ):
            context.enqueue(feeds, {})
            self._memory.synchronize(context.stream)
            return self._memory.times(context.stream, context.launch or context.execute, runs)

    def report(self) -> RuntimeReport:
        with runtime_errors(f"{self.name} cannot report its layers"):
            described = self._engines[0].layers(self._trt.LayerInformationFormat.JSON)
        details: dict[str, Any] = {
            "profiles": [str(profile) for engine in self._engines for profile in engine.profiles],
        }
        try:
            layers = json.loads(described).get("Layers", [])
        except ValueError as error:  # the engine runs all the same
            layers, details["layers"] = [], f"TensorRT's description is not JSON: {error}"
        kinds = Counter(layer.get("LayerType", "?") if isinstance(layer, dict) else "layer" for layer in layers)
        return self._make_report(dict(kinds.most_common()), details)

    def close(self) -> None:
        # A build on the background thread may take minutes, so it is not waited for: its engine is dropped.
        with self._lock:
            self._closed = True
            engines, self._engines = self._engines, []
        with self._memory.current():  # in which TensorRT releases its own
            self._contexts.close()
            engines.clear()

    def _key(self, feeds: Feeds, *, record: bool) -> ContextKey:
        """Which context runs these feeds: one of their own if their shapes are kept as a CUDA graph."""
        for spec in self.info.inputs:
            if spec.overridable and spec.name in feeds:
                raise InvalidFeeds(
                    f"{self.name} cannot override input {spec.name!r}: TensorRT builds its default into the engine. "
                    "Omit it, or choose another backend"
                )
        engine, profile = self._profile(feeds)
        shapes: Shapes = tuple(tuple(feeds[spec.name].shape) for spec in self.info.required)
        with self._lock:
            recordable = record and all(isinstance(array, np.ndarray) for array in feeds.values())
            if recordable and len(self._recorded) < self._max_graphs:
                self._recorded.add(shapes)
            recordable = recordable and shapes in self._recorded
        return ContextKey(engine, profile, shapes if recordable else None)

    def _profile(self, feeds: Feeds) -> tuple[int, int]:
        """The index of the engine, and of the profile in it."""
        candidates = [
            (number, index, profile)
            for number, engine in enumerate(list(self._engines))
            for index, profile in enumerate(engine.profiles)
        ]
        if not candidates:
            raise BackendFailed(f"{self.name}: the session was closed")
        sizes = sizes_of(self.info, feeds)
        try:
            number, index, _ = candidates[select([profile for _, _, profile in candidates], sizes)]
        except InvalidFeeds as error:
            if self._make_engine is None:
                raise
            problem = self._build_problem
            self._build_in_background(self._make_engine, sizes)
            raise BackendUnavailable(
                self.name,
                f"an engine for {' '.join(f'{key}={size}' for key, size in sizes.items())} is being built"
                + (f" (the previous build failed: {problem})" if problem else ""),
                "Try again later, or declare the shape in advance with options={'shapes': [...]}.",
            ) from error
        return number, index

    def _build_in_background(
        self, make_engine: Callable[[Sequence[Profile]], Engine], sizes: Mapping[str, int]
    ) -> None:
        """Build an engine on a thread, one at a time: other shapes that miss meanwhile are not queued."""

        def work() -> None:
            try:
                with runtime_errors(f"{self.name} cannot build an engine"), self._memory.current():
                    engine = make_engine([observed(sizes, self.info.limits)])
            except IsorunError as error:
                self._build_problem = str(error)
                return
            with self._lock:
                if not self._closed:
                    self._engines.append(engine)

        with self._lock:
            if not self._closed and (self._building is None or not self._building.is_alive()):
                self._building = threading.Thread(target=work, name="isorun-tensorrt-build", daemon=True)
                self._building.start()

    def _create_context(self, key: ContextKey) -> ExecutionContext:
        engines = self._engines
        if not engines:
            raise BackendFailed(f"{self.name}: the session was closed")
        return ExecutionContext(self.name, engines[key.engine], key, self.info, self._memory, self.index)

    def _allocate(self, targets: Mapping[str, Any], feeds: Feeds) -> dict[str, Any]:
        """The targets with new device memory for ``ON_DEVICE``, after validating the caller's own memory."""
        allocated: dict[str, Any] = {}
        shapes = output_shapes(self.info, sizes_of(self.info, feeds))
        for name, target in targets.items():
            shape, dtype = shapes[name]
            if target is ON_DEVICE:
                memory = self._memory.allocate(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
                target = DeviceArray(memory.address, shape, dtype, self.index, owner=memory)
            elif target is not None:
                check_fits(name, target, shape, dtype)
            allocated[name] = target
        return allocated


class TensorRTBinding(Binding):
    """Arrays bound to inputs and outputs, on the device or in host memory."""

    def __init__(self, executable: TensorRTExecutable, feeds: Feeds, outputs: Mapping[str, Any]) -> None:
        super().__init__(executable, feeds, outputs)
        self._tensorrt = executable

    def run(self) -> list[Any]:
        return self._tensorrt.run_into(self._outputs, self._feeds)
