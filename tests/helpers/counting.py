"""Compiled models whose executables compute nothing and count their calls."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isorun.compilation.compiled_model import MAIN, CompiledModel
from isorun.compilation.padding import KEPT, Removal
from isorun.plugin.backend import Executable
from isorun.types import CompileConfig, Feeds, LoweredModel, ModelInfo, RuntimeReport
from isorun_conformance import fakes


class Backend(fakes.Right):
    """Counts what happens to each graph of a model. Its runs are serialized, its compilations are not.

    Args:
        results: the outputs of every run, by its feeds.
    """

    capabilities = replace(fakes.Right.capabilities, thread_safe=True)

    def __init__(self, results: Callable[[Feeds], list[Any]]) -> None:
        super().__init__("counting")
        self.results = results
        self.compiled: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()

    def compile(self, model: LoweredModel, _config: CompileConfig) -> Executable:
        self.compiled[model.path.name] += 1
        return _Executable(self, model.path.name)


class _Executable(Executable):
    def __init__(self, backend: Backend, graph: str) -> None:
        self._backend, self._graph = backend, graph

    def run(self, _output_names: Sequence[str], feeds: Feeds) -> list[Any]:
        self._backend.runs[self._graph] += 1
        return self._backend.results(feeds)

    def report(self) -> RuntimeReport:
        return RuntimeReport("here", "fp32", {"cpu": {"Op": self._backend.runs[self._graph]}}, {})

    def close(self) -> None:
        self._backend.closed[self._graph] += 1


def model(
    info: ModelInfo, results: Callable[[Feeds], list[Any]], removal: Removal = KEPT, error: Exception | None = None
) -> tuple[CompiledModel, Backend, list[str]]:
    """A model, its backend, and the graphs that were requested besides the main one.

    Args:
        info: its description.
        results: the outputs of every run.
        removal: whether padding is removed.
        error: raised for those graphs.
    """
    backend, requested = Backend(results), list[str]()

    def lower(graph: str) -> LoweredModel:
        requested.append(graph)
        if error is not None:
            raise error
        return lowered(graph)

    def lowered(graph: str) -> LoweredModel:
        return LoweredModel(Path(graph), "primitive", "0" * 64, info, cached=False)

    return CompiledModel(backend, CompileConfig(), lowered(MAIN), removal=removal, lower=lower), backend, requested
