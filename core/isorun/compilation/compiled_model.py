"""A model compiled for one backend: every call passes through this class on its way to the plugin.

A model has up to three graphs, each with an executable that is compiled when a run first needs it:

- the main one;
- the packed one, for batches with enough padding (:mod:`isorun.compilation.padding`);
- the model as given, for masks with other values than 0 and 1: segment ids, negative numbers, fractions. A fused
  attention attends to every key whose mask is not 0. The original model may do something else with other values.

What plugins return is checked, and what they raise becomes an error of isorun. A run that fails may leave an executable
in a state in which later runs are wrong (OpenVINO 2026.4). Unless the backend declares ``usable_after_failure``, runs
of one executable are serialized, and it is compiled again before the run that follows a failure.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, TypeVar

import numpy as np

from isorun.compilation.index_check import check_counts, counted, with_counts
from isorun.compilation.output_check import OutputCheck
from isorun.compilation.padding import KEPT, Removal, pays, set_to_zero
from isorun.compilation.plugin_errors import called, expect, failure, violation, wrong_type
from isorun.compilation.recompilation import Recompilations
from isorun.compilation.static_shapes import Fix, Shapes
from isorun.errors import (
    BackendFailed,
    BackendUnavailable,
    CacheError,
    InvalidModel,
    IsorunError,
    SessionClosed,
    UnsupportedModel,
    WorkerDied,
    WorkerTimeout,
)
from isorun.models.feeds import is_binary, not_binary
from isorun.plugin import validation
from isorun.plugin.backend import (
    Backend,
    Binding,
    Executable,
    SupportsBinding,
    SupportsDeviceArrays,
    SupportsDeviceTimes,
)
from isorun.plugin.device_arrays import ON_DEVICE, DeviceArray
from isorun.system.progress import logged
from isorun.types import INDEX_ERRORS, CompileConfig, Feeds, LoweredModel, RuntimeReport

_T = TypeVar("_T")

CLOSED = "This session is closed. Open another."
MAIN, PACKED, AS_GIVEN = "main", "packed", "as given"
"""The graphs of a model."""

Bindings = dict[Any, tuple[Any, Binding]]  # by graph, the executable that arrays are bound to, and the binding

_logger = logging.getLogger("isorun")


@dataclass(eq=False, slots=True)
class _Graph:
    """One graph of a model.

    Attributes:
        lowered: its file.
        check: of its outputs.
        counted: what it counts of indices outside their tables.
        lock: serializes calls; ``None`` if they may overlap.
        executable: the plugin's, with any optional abilities.
        run: the executable's.
        report: the executable's; ``None`` if it was not requested yet.
        failure: why the executable must not be used again; empty if it may.
    """

    lowered: LoweredModel
    check: OutputCheck
    counted: Sequence[str]
    lock: threading.Lock | None
    executable: Any
    run: Callable[[Sequence[str], Feeds], list[Any]]
    report: RuntimeReport | None = None
    failure: str = ""


class CompiledModel:
    """A model compiled for one backend, ready to run.

    Args:
        backend, config: what it is compiled for.
        lowered: its main graph, compiled now.
        removal: whether padding is removed.
        lower: makes the graph :data:`PACKED` or :data:`AS_GIVEN` for the first run that needs it.
        fix: makes graphs of fixed shapes for a backend with ``static_shapes``; ``None`` for others.
        binary: why masks must hold 0 and 1 only; empty if others run the model as given.
        verify: called with a graph after every compilation; raises an error if the model's file has changed.
        recompilations: counts compilations after failed runs.

    Attributes:
        info: the description of the model.

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
        fix: Fix | None = None,
        binary: str = "",
        verify: Callable[[LoweredModel], object] = lambda _: None,
        recompilations: Recompilations | None = None,
    ) -> None:
        self.backend, self.config, self.lowered = backend, config, lowered
        self.info = lowered.info
        self._removal = removal
        self._lower = lower or (lambda _: lowered)
        self._shapes = None if fix is None else Shapes(backend, config.precision, fix, self._compile_plainly)
        self._binary = binary
        self._verify = verify
        self._recompilations = recompilations or Recompilations()
        self._mask = lowered.info.mask or ""
        self._masks = lowered.info.masks if lower else ()
        self._by_token = frozenset(lowered.info.token_outputs or ())
        self._refusal = ""
        self._unpackable = ""  # why there is no packed graph
        # Compiling does not delay runs, unless nothing of the plugin may overlap.
        self._compiling = threading.Lock()
        self._graphs: list[_Graph] = []
        self._main = self._compiled(MAIN)
        self._packed: _Graph | None = None
        self._as_given: _Graph | None = None

    def run(self, output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        """Run once.

        Args:
            output_names: the outputs to return, in order.
            feeds: validated by :class:`isorun.models.feeds.FeedChecker`.

        Raises:
            IsorunError: the model is closed.
            InvalidFeeds: an index is outside its table, or a mask's values are not supported.
            BackendFailed: the runtime failed.
        """
        graph, zeros = self._choose(feeds)
        names = [*output_names, INDEX_ERRORS] if graph.counted else output_names
        if graph.lock is None:
            if self._refusal:
                raise SessionClosed(self._refusal)
            try:
                results: Any = graph.run(names, feeds)
            except Exception as error:
                self._explain("run()", error)
                raise
        else:
            results = self._call(graph, "run()", methodcaller("run", names, feeds))
        return self._checked(graph, "run()", output_names, results, feeds, zeros)

    def run_on_device(self, output_names: Sequence[str], feeds: Feeds) -> list[DeviceArray]:
        """As :meth:`run`, with outputs in device memory.

        Raises:
            BackendUnavailable: the backend does not support it.
        """
        self.backend.refuse_device_arrays("device_outputs=True")
        graph, zeros = self._choose(feeds)
        if graph.counted:
            return self.run_bound(feeds, dict.fromkeys(output_names, ON_DEVICE), {})
        if not isinstance(graph.executable, SupportsDeviceArrays):
            raise wrong_type(self.backend, "compile()", "an executable with run_on_device()", graph.executable)
        results: Any = self._call(graph, "run_on_device()", methodcaller("run_on_device", output_names, feeds))
        return self._checked(graph, "run_on_device()", output_names, results, feeds, zeros)

    def run_bound(self, feeds: Feeds, outputs: Mapping[str, Any], bindings: Bindings) -> list[Any]:
        """Run once on arrays that stay bound.

        The graph is chosen at every run, since the contents of feeds may change. All graphs write to the same arrays.

        Args:
            feeds, outputs: as for :meth:`isorun.plugin.SupportsBinding.bind`; feeds have been validated.
            bindings: those of these arrays, empty at first.

        Returns:
            The outputs in the order of their binding.
        """
        method = "a binding's run()"
        graph, zeros = self._choose(feeds)
        results = self._call(graph, method, lambda _: self._bound(graph, feeds, outputs, bindings).run())
        return self._checked(graph, method, list(outputs), results, feeds, zeros)

    def device_times(self, feeds: Feeds, runs: int) -> np.ndarray | None:
        """The times of runs by events of the device: :meth:`isorun.plugin.SupportsDeviceTimes.device_times`; ``None``
        if the backend has none."""
        graph, _ = self._choose(feeds)
        if not isinstance(graph.executable, SupportsDeviceTimes):
            return None
        times: np.ndarray | None = self._call(graph, "device_times()", methodcaller("device_times", feeds, runs))
        return times

    def report(self) -> RuntimeReport:
        """What the runtime reports of the main graph, and what is known of the others."""
        self.check_open()
        report = self._report(self._main)
        details = dict(report.details)
        if self._removal.note is not None:
            details["padding"] = note = dict(self._removal.note)
            if self._unpackable:
                note["removed"] = f"never: {self._unpackable}"
            elif self._packed is not None:
                note["operators"] = self._report(self._packed).operators
        if self._as_given is not None:
            operators = self._report(self._as_given).operators
            details["mask"] = {"values": "other than 0 and 1 run the model as given", "operators": operators}
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
                stack.callback(self._close, graph)

    def unlock_after_fork(self) -> None:
        """Replace the locks: the threads that held them may not exist in this process."""
        self._compiling = threading.Lock()
        if self._shapes is not None:
            self._shapes.pool.unlock_after_fork()
        for graph in self._graphs:
            graph.lock = self._new_lock()

    def _choose(self, feeds: Feeds) -> tuple[_Graph, bool]:
        """The graph that runs feeds, and whether its token outputs must be set to zero at padding."""
        for name in self._masks:
            mask = feeds.get(name)
            if type(mask) is np.ndarray and not is_binary(mask):  # masks on a GPU are not read
                return self._graph_as_given(name, mask), self._removal.zeros
        if not self._removal.by_batch:
            return self._main, False
        mask = feeds.get(self._mask)
        if mask is None:  # the packed graph reads the model's default mask
            return self._packed or self._packed_or_main(), False
        padding = mask.size - np.count_nonzero(mask)
        if not padding:
            return self._main, False
        graph = (self._packed or self._packed_or_main()) if pays(padding, mask.size) else self._main
        return graph, graph is self._main

    def _packed_or_main(self) -> _Graph:
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

    def _graph_as_given(self, name: str, mask: np.ndarray) -> _Graph:
        if self._binary:
            raise not_binary(name, mask, self._binary)
        with self._compiling:
            if self._as_given is None:
                _logger.info("the model is compiled as given: %r has other values than 0 and 1", name)
                self._as_given = self._compiled(AS_GIVEN)
            return self._as_given

    def _compiled(self, name: str) -> _Graph:
        self.check_open()
        lowered = self.lowered if name == MAIN else self._lower(name)
        executable = self._compile(lowered)
        check = OutputCheck(lowered.info, self.config.precision)
        graph = _Graph(lowered, check, counted(lowered), self._new_lock(), executable, executable.run)
        self._graphs.append(graph)
        return graph

    def _new_lock(self) -> threading.Lock | None:
        """The lock of one graph's calls, or of all calls."""
        if not self.backend.capabilities.thread_safe:
            return self._compiling
        # Without a lock, a run could follow the failed one before the failure is known here.
        return None if self.backend.capabilities.usable_after_failure else threading.Lock()

    def _compile(self, lowered: LoweredModel) -> Executable:
        return self._compile_plainly(lowered) if self._shapes is None else self._shapes.executable(lowered)

    def _compile_plainly(self, lowered: LoweredModel) -> Executable:
        backend = self.backend
        with logged("compiled %s on %s", lowered.path, backend.name):
            executable = called(backend, "compile()", backend.compile, with_counts(lowered), self.config)
            if problem := validation.executable_problem(executable):
                raise violation(backend, "compile()", problem)
            try:
                self._verify(lowered)
            except BaseException:
                executable.close()
                raise
        return executable

    def _call(self, graph: _Graph, method: str, function: Callable[[Any], _T]) -> _T:
        """Call a function of a graph's executable; after a failure, of a newly compiled one."""
        with graph.lock or nullcontext():
            self.check_open()  # it may have been closed while this call waited
            if graph.failure:
                self._compile_again(graph)
            try:
                return function(graph.executable)
            except BaseException as error:
                own = isinstance(error, IsorunError) and not isinstance(error, BackendFailed)
                replaced = isinstance(error, WorkerDied | WorkerTimeout)  # another worker compiles the model
                if not (own or replaced or self.backend.capabilities.usable_after_failure):
                    graph.failure = f"{type(error).__name__}: {error}"
                self._explain(method, error)
                raise

    def _compile_again(self, graph: _Graph) -> None:
        failed, graph.executable = graph.executable, self._compile(graph.lowered)
        graph.run, graph.report = graph.executable.run, None
        level = logging.DEBUG if self._recompilations.count else logging.WARNING  # once for each session
        _logger.log(level, "%s: the model is compiled again, since a run failed: %s", self.backend.name, graph.failure)
        self._recompilations.add(graph.failure)
        graph.failure = ""
        called(self.backend, "close()", failed.close)

    def _bound(self, graph: _Graph, feeds: Feeds, outputs: Mapping[str, Any], bindings: Bindings) -> Binding:
        """The binding to a graph's executable."""
        executable, binding = bindings.get(graph, (None, None))
        if binding is None or executable is not graph.executable:
            executable = graph.executable
            outputs = {**outputs, INDEX_ERRORS: None} if graph.counted else outputs
            if isinstance(executable, SupportsBinding):
                bound: object = called(self.backend, "bind()", executable.bind, feeds, outputs)
                binding = expect(self.backend, "bind()", Binding, bound)
            else:
                binding = Binding(executable, feeds, outputs)
            bindings[graph] = executable, binding
        return binding

    def _checked(
        self, graph: _Graph, method: str, output_names: Sequence[str], results: Any, feeds: Feeds, zeros: bool
    ) -> list[Any]:
        """What a plugin returned, if it is right; with zeros at padding."""
        if graph.counted and type(results) is list and results:
            check_counts(graph.counted, results.pop())
        if problem := graph.check.problem(output_names, results, feeds):
            raise violation(self.backend, method, problem)
        if zeros and (mask := feeds.get(self._mask)) is not None:
            set_to_zero(
                {name: results[index] for index, name in enumerate(output_names) if name in self._by_token}, mask
            )
        return results  # type: ignore[no-any-return]

    def _report(self, graph: _Graph) -> RuntimeReport:
        if graph.report is None:
            report: RuntimeReport = self._call(graph, "report()", methodcaller("report"))
            if problem := validation.report_problem(report):
                raise violation(self.backend, "report()", problem)
            graph.report = report
        return graph.report

    def _close(self, graph: _Graph) -> None:
        with graph.lock or nullcontext():
            called(self.backend, "close()", graph.executable.close)

    def _explain(self, method: str, error: BaseException) -> None:
        """Raise the error for an exception of the plugin; return for an error of isorun, which is right as it is."""
        foreign = isinstance(error, Exception) and not isinstance(error, IsorunError)
        if foreign or isinstance(error, BackendFailed):
            self.check_open()  # another thread may have closed it during the call
        if foreign:
            raise failure(self.backend, method, error) from error
