"""One graph of a model, compiled by a plugin.

What plugins return is checked, and what they raise becomes an error of isorun. A run that fails may leave an executable
in a state in which later runs are wrong (OpenVINO 2026.4). Unless the backend declares ``usable_after_failure``, runs
of one executable are serialized, and it is compiled again before the run that follows a failure.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from operator import methodcaller
from typing import Any, TypeVar

from isorun.compilation.index_check import check_counts, counted
from isorun.compilation.output_check import OutputCheck
from isorun.compilation.recompilation import NotCompiled, Recompilations
from isorun.errors import BackendFailed, InvalidFeeds, WorkerDied, WorkerTimeout, in_words
from isorun.plugin import validation
from isorun.plugin.backend import Backend, Binding, Executable, SupportsBinding
from isorun.plugin.plugin_errors import called, failure, is_allowed, violation, wrong_type
from isorun.system.interruption import interrupts
from isorun.types import INDEX_ERRORS, Feeds, LoweredModel, RuntimeReport
from isorun.types.provenance import plain

_T = TypeVar("_T")

Bindings = dict[Any, tuple[Any, Binding]]  # by graph, the executable that arrays are bound to, and the binding

_logger = logging.getLogger("isorun")


class CompiledGraph:
    """One graph of a model.

    Args:
        compile_: compiles it, now and after failures.
        renewed: the file to compile after failures, checked as when it was first opened.
        lock: serializes calls; ``None`` if they may overlap.
        check_open: raises ``SessionClosed`` once calls are refused.
        recompilations: counts compilations after failed runs.

    Attributes:
        counted: what it counts of indices outside their tables.
        executable: the plugin's, with any optional abilities.
        run: the executable's.
    """

    __slots__ = (
        *("_backend", "_check", "_check_open", "_compile", "_failure", "_recompilations", "_renewed", "_report"),
        *("counted", "executable", "lock", "lowered", "run"),
    )

    def __init__(
        self,
        backend: Backend,
        lowered: LoweredModel,
        precision: str,
        *,
        compile_: Callable[[LoweredModel], Executable],
        renewed: Callable[[], LoweredModel],
        lock: threading.Lock | None,
        check_open: Callable[[], None],
        recompilations: Recompilations,
    ) -> None:
        self.lowered: LoweredModel = lowered
        self.lock: threading.Lock | None = lock
        self._backend, self._compile, self._check_open = backend, compile_, check_open
        self._recompilations, self._renewed = recompilations, renewed
        self.counted: Sequence[str] = counted(lowered)
        self._check = OutputCheck(lowered.info, precision)
        self.executable: Any = compile_(lowered)
        self.run: Callable[[Sequence[str], Feeds], list[Any]] = self.executable.run
        self._report: RuntimeReport | None = None
        self._failure = ""  # why the executable must not be used again

    def call(self, method: str, function: Callable[[Any], _T], feeds: Feeds | None = None) -> _T:
        """Call a function of the executable; after a failure, of a newly compiled one.

        ``feeds`` are what the function reads, for messages.
        """
        with self.lock or nullcontext():
            executable = self.executable
            self._check_open()  # it may have been closed while this call waited
            if self._failure:
                executable = self._compile_again()
            try:
                return function(executable)
            except BaseException as error:
                own = is_allowed(error) and (isinstance(error, NotCompiled) or not isinstance(error, BackendFailed))
                replaced = isinstance(error, WorkerDied | WorkerTimeout)  # another worker compiles the model
                if not (own or replaced or self._backend.capabilities.usable_after_failure):
                    self._failure = in_words(error)
                self.explain(method, error, feeds)
                raise

    def _compile_again(self) -> Any:
        failed, self.executable = self.executable, self._compile(self._renewed())
        self.run, self._report = self.executable.run, None
        level = logging.DEBUG if self._recompilations.count else logging.WARNING  # once for each session
        _logger.log(level, "%s: the model is compiled again, since a run failed: %s", self._backend.name, self._failure)
        self._recompilations.add(self._failure)
        self._failure = ""
        called(self._backend, "close()", failed.close)
        return self.executable

    def bound(self, feeds: Feeds, outputs: Mapping[str, Any], bindings: Bindings) -> Binding:
        """The binding of arrays to the executable, from those of the same arrays."""
        executable, binding = bindings.get(self, (None, None))
        if binding is None or executable is not self.executable:
            executable = self.executable
            outputs = {**outputs, INDEX_ERRORS: None} if self.counted else outputs
            if isinstance(executable, SupportsBinding):
                bound: object = called(self._backend, "bind()", executable.bind, feeds, outputs)
                if not isinstance(bound, Binding):
                    raise wrong_type(self._backend, "bind()", "an isorun.plugin.Binding", bound)
                binding = bound
            else:
                binding = Binding(executable, feeds, outputs)
            bindings[self] = executable, binding
        return binding

    def checked(self, method: str, output_names: Sequence[str], results: Any, feeds: Feeds) -> list[Any]:
        """What the plugin returned, if it is right."""
        if self.counted and type(results) is list and results:
            check_counts(self.counted, results.pop())
        if problem := self._check.problem(output_names, results, feeds, on_device=method != "run()"):
            if sizes := self._check.disagreement(feeds):
                raise InvalidFeeds(sizes)
            raise violation(self._backend, method, problem)
        return [*results]  # a list that the plugin may keep

    def report(self) -> RuntimeReport:
        """The executable's report, which is requested once."""
        if self._report is None:
            report: RuntimeReport = self.call("report()", methodcaller("report"))
            if problem := validation.report_problem(report):
                raise violation(self._backend, "report()", problem)
            self._report = replace(report, details=plain(report.details))
        return self._report

    def close(self) -> None:
        """Release the executable once serialized calls are done, with whatever its ``close()`` has left."""
        with self.lock or nullcontext():
            executable, self.executable, self.run = self.executable, None, self._refuse
            called(self._backend, "close()", executable.close)

    def _refuse(self, *_: Any) -> list[Any]:
        """Instead of a run that began before :meth:`close`."""
        self._check_open()
        return []

    def explain(self, method: str, error: BaseException, feeds: Feeds | None = None) -> None:
        """Raise the error for an exception of the plugin; return for an error of isorun, which is right as it is.

        Sizes of inputs are compared here, and not before the run: a model may declare them wrongly, and broadcasts run.
        """
        foreign = not (is_allowed(error) or interrupts(error))
        if foreign or isinstance(error, BackendFailed):
            self._check_open()  # another thread may have closed it during the call
            own = not isinstance(error, WorkerDied | WorkerTimeout)
            if own and feeds is not None and (sizes := self._check.disagreement(feeds)):
                raise InvalidFeeds(f"{sizes}. {self._backend.name} failed to run them") from error
        if foreign:
            raise failure(self._backend, method, error) from error
