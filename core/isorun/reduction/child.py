"""The child process of a search: ``python -m isorun.reduction.child EVENTS FOLDER``.

A candidate is reported before it runs, so that the one that ends the process is known. The next process gets the
outcomes so far, and repeats the search up to there without running anything.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from isorun.errors import IsorunError, UnsupportedModel
from isorun.graph import pipeline
from isorun.graph.io import files
from isorun.graph.io.shape_inference import infer_shapes
from isorun.graph.transforms import work_around
from isorun.graph.transforms.cut import Cutter, expose_values
from isorun.plugin import faults, registry
from isorun.reduction.minimize import minimal
from isorun.reduction.search import SECONDS, WRITTEN
from isorun.reduction.trial import SAME, Outcome, Runner, outcome
from isorun.system import npz
from isorun.system.cache import Cache, sha256
from isorun.system.subprocesses import tell

_BESIDE = 2**30  # bytes; larger weights are written to a file of their own


class Search:
    """The search in one model.

    Args:
        events: the file to report to.
        folder: of the search.
    """

    def __init__(self, events: str, folder: Path) -> None:
        self._events, self._folder = events, folder
        request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        self._model, self._stem = Path(request["model"]), request["stem"]
        self._outcomes = {key: Outcome(*value) for key, value in request["outcomes"].items()}
        self._cache = Cache(folder / "cache")
        self._backend, self._against = request["backend"], request["against"]
        offers = registry.get(self._against).capabilities
        self._widest = "fp64" if "fp64" in offers.precisions else "fp32"
        self._precision, self._threads = request["precision"], request["threads"]

    def run(self) -> None:
        """Search, and report the result."""
        for case in sorted(self._folder.glob("case-*.npz")):
            feeds, mask = _case(case)
            first = self._outcome(case.stem, self._model, feeds, mask, fused=True)
            if first.kind != SAME:
                self._reduce(first, feeds, mask)
                return
        tell(self._events, unchanged=True)

    def _reduce(self, first: Outcome, feeds: dict[str, np.ndarray], mask: np.ndarray | None) -> None:
        """Report the smallest part of the fused graph; or of what the runtime gets for it, in standard operators."""
        graph = pipeline.read(self._model).model
        total = graph.graph.num_nodes()
        part = self._smallest(graph, "fused", first.kind, feeds, mask, fused=True)
        if part is None:
            raise UnsupportedModel(f"The model {first.kind} ({first.reason}), but not once its values are known")
        lowered = files.read(self._runner(self._backend, fused=True).lower(part.path).path)
        plain = all(not node.domain for node in lowered.graph.all_nodes())
        if plain and lowered.graph.num_nodes() > files.read(part.path).graph.num_nodes():
            part = self._smallest(lowered, "lowered", first.kind, part.feeds, mask, fused=False) or part
        self._report(part, total)

    def _smallest(
        self,
        graph: ir.Model,
        stage: str,
        kind: str,
        feeds: dict[str, np.ndarray],
        mask: np.ndarray | None,
        *,
        fused: bool,
    ) -> Part | None:
        """The smallest part that fails in the same way; ``None`` if the whole graph does not, between known values."""
        infer_shapes(graph)
        known = {**feeds, **self._values(graph, stage, feeds, fused=fused)}
        cutter, nodes = Cutter(graph, known), list(graph.graph)
        numbers = {node: index for index, node in enumerate(nodes)}
        path = self._folder / f"{stage}.onnx"

        def write(part: Sequence[ir.Node]) -> dict[str, np.ndarray]:
            model = cutter.cut(part)
            files.write(model, path, beside_above=_BESIDE)
            return {value.name: known[value.name] for value in model.graph.inputs if value.name}

        def test(part: Sequence[ir.Node]) -> Outcome:
            try:
                inputs = write(part)
            except UnsupportedModel as error:
                return Outcome(SAME, str(error))
            key = sha256(repr((stage, [numbers[node] for node in part])).encode())
            return self._outcome(key, path, inputs, mask, fused=fused)

        if test(nodes).kind != kind:
            return None
        smallest = minimal(nodes, lambda part: test(part).kind == kind)
        return Part(path, write(smallest), test(smallest), fused, mask)

    def _values(
        self, graph: ir.Model, stage: str, feeds: Mapping[str, np.ndarray], *, fused: bool
    ) -> dict[str, np.ndarray]:
        """What the reference computes for every value of a graph, in the graph's types."""
        whole = graph.clone()
        expose_values(whole)
        path = self._folder / f"{stage}-values.onnx"
        files.write(whole, path, beside_above=_BESIDE)
        dtypes = {value.name: value.dtype for value in whole.graph.outputs}
        results = self._runner(self._against, fused=fused).run(path, feeds)
        return {
            name: _in_type(array, dtypes.get(name)) for name, array in results.items() if isinstance(array, np.ndarray)
        }

    def _runner(self, backend: str, *, fused: bool) -> Runner:
        tested = backend == self._backend
        precision = self._precision if tested else self._widest
        return Runner(backend, precision, self._threads, self._cache, fused, trusted=not tested)

    def _outcome(
        self, key: str, path: Path, feeds: Mapping[str, np.ndarray], mask: np.ndarray | None, *, fused: bool
    ) -> Outcome:
        """The outcome of a candidate, reported; an earlier one if it is known."""
        if key not in self._outcomes:
            tell(self._events, begin=key)
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            tested, reference = (self._runner(name, fused=fused) for name in (self._backend, self._against))
            self._outcomes[key] = outcome(tested, reference, path, feeds, mask)
            faulthandler.cancel_dump_traceback_later()
            tell(self._events, tried=key, **asdict(self._outcomes[key]))
        return self._outcomes[key]

    def _report(self, part: Part, total: int) -> None:
        runner = self._runner(self._backend, fused=part.fused)
        lowered = files.read(runner.lower(part.path).path)
        written = self._folder / WRITTEN
        written.mkdir(exist_ok=True)
        files.write(lowered, written / f"{self._stem}.onnx", beside_above=_BESIDE)
        (written / f"{self._stem}.feeds.npz").write_bytes(npz.content(part.feeds))
        expected = self._runner(self._against, fused=part.fused).run(part.path, part.feeds)
        (written / f"{self._stem}.expected.npz").write_bytes(npz.content(expected))
        try:
            known = work_around.apply(lowered, faults.of(registry.get(self._backend)).rows)
        except UnsupportedModel as error:
            known = [str(error)]
        nodes = [f"{node.op_type} {node.name or ''}".rstrip() for node in files.read(part.path).graph]
        tell(self._events, result={**asdict(part.outcome), "nodes": nodes, "of": total, "known": known})


@dataclass(frozen=True)
class Part:
    """A part of the model that fails.

    Attributes:
        path: its file.
        feeds: its inputs.
        outcome: how it fails.
        fused: whether it is fused before it is lowered.
        mask: the mask of the case.
    """

    path: Path
    feeds: dict[str, Any]
    outcome: Outcome
    fused: bool
    mask: np.ndarray | None


def _case(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """The feeds and the mask that the parent has written; a name of a feed may be any text but the empty one."""
    with np.load(path) as arrays:
        feeds = {key.removesuffix(":"): arrays[key] for key in arrays.files}
    return feeds, feeds.pop("", None)


def _in_type(array: np.ndarray, dtype: ir.DataType | None) -> np.ndarray:
    """A value of the reference, which may compute in a wider type, in the type of the graph."""
    if dtype is None or array.dtype.kind not in "fV" or array.dtype == dtype.numpy():
        return array
    return array.astype(dtype.numpy())


if __name__ == "__main__":
    try:
        Search(sys.argv[1], Path(sys.argv[2])).run()
    except IsorunError as error:
        tell(sys.argv[1], error=str(error))
    except Exception as error:  # else it would be taken for a candidate that ends the process
        tell(sys.argv[1], error=f"{type(error).__name__}: {error}")
        raise
