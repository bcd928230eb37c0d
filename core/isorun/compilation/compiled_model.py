"""A model compiled for one backend: every call passes through this class on its way to the plugin.

A model has up to three graphs, each with an executable that is compiled when a run first needs it:

- the main one;
- the packed one, for batches with enough padding (:mod:`isorun.compilation.padding`);
- the model as given, for masks with other values than 0 and 1: segment ids, negative numbers, fractions. A fused
  attention attends to every key whose mask is not 0. The original model may do something else with other values.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from isorun.compilation.compiled_graph import Bindings, CompiledGraph
from isorun.compilation.index_check import with_counts
from isorun.compilation.padding import KEPT, Removal, pays, with_zeros
from isorun.compilation.recompilation import CompiledElsewhere, Recompilations
from isorun.compilation.single_rows import SingleRows
from isorun.compilation.static_shapes import Fix, Shapes
from isorun.errors import (
    BackendFailed,
    BackendUnavailable,
    CacheError,
    InvalidFeeds,
    InvalidModel,
    SessionClosed,
    UnsupportedModel,
    WorkerDied,
    WorkerTimeout,
)
from isorun.models.feeds import is_binary, not_binary
from isorun.plugin import validation
from isorun.plugin.backend import Backend, Executable, SupportsDeviceArrays, SupportsDeviceTimes
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray
from isorun.plugin.plugin_errors import called, violation, wrong_type
from isorun.system.progress import logged
from isorun.types import INDEX_ERRORS, CompileConfig, Feeds, LoweredModel, ModelInfo, RuntimeReport

CLOSED = "This session is closed. Open another."
MAIN, PACKED, AS_GIVEN = "main", "packed", "as given"
"""The graphs of a model."""

_logger = logging.getLogger("isorun")


class CompiledModel:
    """A model compiled for one backend, ready to run.

    Args:
        backend, config: what it is compiled for.
        lowered: its main graph, compiled now.
        removal: whether padding is removed.
        lower: makes the graph :data:`PACKED` or :data:`AS_GIVEN` for the first run that needs it.
        single_rows: whether each row is a run of its own.
        fix: makes graphs of fixed shapes for a backend with ``static_shapes``; ``None`` for others.
        binary: why masks must hold 0 and 1 only; empty if others run the model as given.
        verify: called with a graph after every compilation; raises an error if the model's file has changed.
        recompilations: counts compilations after failed runs.

    Raises:
        BackendFailed: the plugin raises an exception of its own, or returns something else than an executable.
        IsorunError: as :meth:`isorun.plugin.Backend.compile` says.
    """

    def __init__(
        self,
        backend: Backend,
        config: CompileConfig,
        lowered: LoweredModel,
        *,
        removal: Removal = KEPT,
        lower: Callable[[str], LoweredModel] | None = None,
        single_rows: bool = False,
        fix: Fix | None = None,
        binary: str = "",
        verify: Callable[[LoweredModel], object] = lambda _: None,
        recompilations: Recompilations | None = None,
    ) -> None:
        self.backend: Backend = backend
        self.config: CompileConfig = config
        self.lowered: LoweredModel = lowered
        self.info: ModelInfo = lowered.info
        self._removal = removal
        self._lower = lower or (lambda _: lowered)
        self._shapes = None if fix is None else Shapes(backend, config.precision, fix, self._compile_plainly)
        self._single_rows = single_rows
        self._binary = binary
        self._verify = verify
        self._recompilations = recompilations or Recompilations()
        self._masks = {name: _may_differ(lowered.info, name) for name in lowered.info.masks} if lower else {}
        self._by_token = frozenset(lowered.info.token_outputs or ())
        self._refusal = ""
        self._unpackable = ""  # why there is no packed graph
        # Compiling does not delay runs, unless nothing of the plugin may overlap.
        self._compiling = threading.Lock()
        self._graphs: list[CompiledGraph] = []
        self._main = self._compiled(MAIN)
        self._packed: CompiledGraph | None = None
        self._as_given: CompiledGraph | None = None

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        """Run once.

        Args:
            output_names: the outputs to return, in order.
            feeds: validated by :class:`isorun.models.feeds.FeedChecker`.

        Raises:
            IsorunError: the model is closed.
            InvalidFeeds: an index is outside its table, a mask's values are not supported, or the run failed and inputs
                differ in a size for which the model has one name.
            BackendFailed: the runtime failed.
        """
        graph, zeros = self._choose(feeds)
        names = [*output_names, INDEX_ERRORS] if graph.counted else [*output_names]  # a list that the plugin may change
        if graph.lock is None:
            if self._refusal:
                raise SessionClosed(self._refusal)
            try:
                results: Any = graph.run(names, feeds)
            except BaseException as error:
                graph.explain("run()", error, feeds)
                raise
        else:
            results = graph.call("run()", methodcaller("run", names, feeds), feeds)
        return self._checked(graph, "run()", output_names, results, feeds, zeros)

    def run_on_device(self, output_names: Sequence[str], feeds: Feeds) -> list[DeviceArray]:
        """As :meth:`run`, with outputs in device memory. Raises ``BackendUnavailable`` if the backend does not support
        it."""
        self.backend.refuse_device_arrays("device_outputs=True")
        graph, zeros = self._choose(feeds)
        if graph.counted:
            return self.run_bound(feeds, dict.fromkeys(output_names, ON_DEVICE), {})

        def run(executable: Any) -> Any:
            if not isinstance(executable, SupportsDeviceArrays):
                raise wrong_type(self.backend, "compile()", "an executable with run_on_device()", executable)
            return executable.run_on_device([*output_names], feeds)

        results: Any = graph.call("run_on_device()", run, feeds)
        return self._checked(graph, "run_on_device()", output_names, results, feeds, zeros)

    def run_bound(self, feeds: Feeds, outputs: Mapping[str, Any], bindings: Bindings) -> list[Any]:
        """Run once on arrays that stay bound. Returns the outputs in the order of their binding.

        The graph is chosen at every run, since the contents of feeds may change. All graphs write to the same arrays.

        Args:
            feeds, outputs: as for :meth:`isorun.plugin.SupportsBinding.bind`; feeds have been validated.
            bindings: those of these arrays, empty at first.
        """
        method = "a binding's run()"
        graph, zeros = self._choose(feeds)
        results = graph.call(method, lambda _: graph.bound(feeds, outputs, bindings).run(), feeds)
        return self._checked(graph, method, list(outputs), results, feeds, zeros)

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        """The times of runs by events of the device: :meth:`isorun.plugin.SupportsDeviceTimes.device_times`; ``None``
        if the backend has none."""
        graph, _ = self._choose(feeds)

        def times(executable: Any) -> np.ndarray | None:
            return executable.device_times(feeds, runs) if isinstance(executable, SupportsDeviceTimes) else None

        return graph.call("device_times()", times)

    def report(self) -> RuntimeReport:
        """What the runtime reports of the main graph, and what is known of the others."""
        self.check_open()
        report = self._main.report()
        details = dict(report.details)
        if self._removal.note is not None:
            details["padding"] = note = dict(self._removal.note)
            if self._unpackable:
                note["removed"] = f"never: {self._unpackable}"
            elif self._packed is not None:
                note["operators"] = self._packed.report().operators
        if self._as_given is not None:
            operators = self._as_given.report().operators
            which = "other than 0 and 1, or for another number of rows, run the model as given"
            details["mask"] = {"values": which, "operators": operators}
        details |= {"rows": "one at a time"} if self._single_rows else {}
        return replace(report, details=details | ({} if self._shapes is None else self._shapes.note()))

    @property
    def closed(self) -> bool:
        """Whether calls are refused."""
        return bool(self._refusal)

    def check_open(self) -> None:
        """Raise ``IsorunError`` once calls are refused."""
        if self._refusal:
            raise SessionClosed(self._refusal)

    def refuse(self, reason: str) -> None:
        """Refuse further calls without releasing the model."""
        self._refusal = reason

    def close(self) -> None:
        """Refuse further calls, and release the model once serialized calls are done."""
        self._refusal = CLOSED
        with self._compiling:
            graphs = self._graphs
        with ExitStack() as stack:
            for graph in graphs:
                stack.callback(graph.close)

    def unlock_after_fork(self) -> None:
        """Replace the locks: the threads that held them may not exist in this process."""
        self._compiling = threading.Lock()
        if self._shapes is not None:
            self._shapes.pool.unlock_after_fork()
        for graph in self._graphs:
            graph.lock = self._new_lock()

    def _choose(self, feeds: Feeds) -> tuple[CompiledGraph, bool]:
        """The graph that runs feeds, and whether its token outputs must be set to zero at padding."""
        for name, inputs in self._masks.items():
            mask = feeds.get(name)
            if type(mask) is np.ndarray and not is_binary(mask):  # masks on a GPU are not read
                if self._binary:
                    raise not_binary(name, mask, self.info.padding_of(name), self._binary)
                return self._graph_as_given(f"{name!r} has other values than 0 and 1"), self._removal.zeros
            for tokens in inputs:  # fused graphs do not broadcast rows
                assert mask is not None, "what may differ from it is listed for a required input"
                rows, length = feeds[tokens].shape
                if rows == mask.shape[0] or length != mask.shape[1]:
                    continue
                if self._binary:
                    raise InvalidFeeds(
                        f"Input {name!r} must have {rows} rows, as {tokens!r} has, {self._binary}, got {mask.shape[0]}"
                    )
                return self._graph_as_given(f"{name!r} and {tokens!r} have other numbers of rows"), self._removal.zeros
        if not self._removal.by_batch:
            return self._main, False
        mask = self.info.attended(feeds)
        if mask is None:  # the packed graph reads the model's default mask
            return self._packed or self._packed_or_main(), False
        padding = mask.size - np.count_nonzero(mask)
        if not padding:
            return self._main, False
        graph = (self._packed or self._packed_or_main()) if pays(padding, mask.size) else self._main
        return graph, graph is self._main

    def _packed_or_main(self) -> CompiledGraph:
        with self._compiling:
            if self._packed is None:
                try:
                    self._packed = self._compiled(PACKED)
                except (WorkerDied, WorkerTimeout):  # nothing is known of the graph: the next run tries again
                    raise
                # The backend lacks an operator that only the packed graph has, or fails to compile it; or, since the
                # session was opened, the model's file was removed or replaced, or the cache became full.
                except (UnsupportedModel, BackendFailed, BackendUnavailable, InvalidModel, CacheError) as error:
                    self._packed, self._unpackable = self._main, str(error)
                    _logger.warning("padding is kept from now on, since the packed graph cannot be compiled: %s", error)
            return self._packed

    def _graph_as_given(self, reason: str) -> CompiledGraph:
        with self._compiling:
            if self._as_given is None:
                _logger.info("the model is compiled as given: %s", reason)
                self._as_given = self._compiled(AS_GIVEN)
            return self._as_given

    def _compiled(self, name: str) -> CompiledGraph:
        self.check_open()
        lowered = self.lowered if name == MAIN else self._lower(name)
        graph = CompiledGraph(
            self.backend,
            lowered,
            self.config.precision,
            compile_=partial(self._compile, name),
            renewed=partial(self._lower, name),
            lock=self._new_lock(),
            check_open=self.check_open,
            recompilations=self._recompilations,
        )
        self._graphs.append(graph)
        return graph

    def _new_lock(self) -> threading.Lock | None:
        """The lock of one graph's calls, or of all calls."""
        if not self.backend.capabilities.thread_safe:
            return self._compiling
        # Without a lock, a run could follow the failed one before the failure is known here.
        return None if self.backend.capabilities.usable_after_failure else threading.Lock()

    def _compile(self, name: str, lowered: LoweredModel) -> Executable:
        executable = self._compile_plainly(lowered, name) if self._shapes is None else self._shapes.executable(lowered)
        return SingleRows(executable, self.backend.name, lowered.info) if self._single_rows else executable

    def _compile_plainly(self, lowered: LoweredModel, name: str = "") -> Executable:
        """Compile a file; one of the model's graphs by its name, which another process may have to compile again."""
        backend = self.backend
        with logged("compiled %s on %s", lowered.path, backend.name):
            executable = called(backend, "compile()", backend.compile, with_counts(lowered), self.config)
            if problem := validation.executable_problem(executable):
                raise violation(backend, "compile()", problem)
            try:
                self._verify(lowered)
                if name and isinstance(executable, CompiledElsewhere):
                    executable.renewed, executable.verify = lambda: with_counts(self._lower(name)), self._verify
            except BaseException:
                executable.close()
                raise
        return executable

    def _checked(
        self, graph: CompiledGraph, method: str, output_names: Sequence[str], results: Any, feeds: Feeds, zeros: bool
    ) -> list[Any]:
        """What a plugin returned, if it is right; with zeros at padding."""
        outputs = graph.checked(method, output_names, results, feeds)
        if zeros and (mask := self.info.attended(feeds)) is not None:
            for index, name in enumerate(output_names):
                if name in self._by_token:
                    outputs[index] = with_zeros(name, outputs[index], mask)
        return outputs


def _may_differ(info: ModelInfo, mask: str) -> list[str]:
    """The inputs of tokens that may have another number of rows than a mask, as far as the model says."""
    rows = {spec.name: spec.shape[0] for spec in info.required if spec.shape is not None and len(spec.shape) == 2}
    return [name for name, size in rows.items() if mask in rows and (size is None or size != rows[mask])]
