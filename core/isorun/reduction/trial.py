"""One model on a backend beside the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isorun.compilation.compiler import Compiler
from isorun.compilation.options import Options
from isorun.errors import UnsupportedModel
from isorun.models.lowering import OWN_TYPES, ModelGraphs
from isorun.models.source import open_model
from isorun.parity import DEFAULT_TOLERANCES, compare
from isorun.plugin import faults, registry
from isorun.plugin.backend import Backend
from isorun.system.cache import Cache
from isorun.types import LoweredModel

SAME, DIFFERS, SHAPES, FAILS, ENDS = "same", "differs", "returns other shapes", "fails", "ends the process"
"""What a runtime does: compute the reference's values, compute others, return outputs of other shapes or types alone,
raise an error, crash or hang."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a runtime does with a model.

    Attributes:
        kind: :data:`SAME`, :data:`DIFFERS`, :data:`SHAPES`, :data:`FAILS` or :data:`ENDS`.
        reason: in what it differs, or the error's message.
    """

    kind: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs models on one backend, the tested one as its runtime computes them: known faults are not worked around.

    Attributes:
        backend: the backend's name.
        precision: the precision.
        threads: the threads of a run; ``None`` for the default.
        cache: where lowered models are kept.
        fused: whether models are fused first.
        trusted: whether known faults are worked around, as for what others are compared with.
    """

    backend: str
    precision: str
    threads: int | None
    cache: Cache
    fused: bool = True
    trusted: bool = False

    def lower(self, path: Path) -> LoweredModel:
        """The model that the runtime gets.

        Raises:
            UnsupportedModel: the backend is trusted, and known to compute a node wrongly that has no equivalent.
        """
        offers = self._plugin.capabilities
        precision = self.precision if self.precision in offers.typed else OWN_TYPES
        graphs = ModelGraphs(open_model(path, self.cache), self.cache, fused=self.fused)
        known = faults.of(self._plugin).rows if self.trusted else ()
        try:
            return graphs.lower(offers.dialects, precision=precision, checks=not offers.checks_indices, faults=known)
        except UnsupportedModel as error:
            if self.trusted:
                raise UnsupportedModel(f"{self.backend} cannot be the reference (--against): {error}") from error
            raise

    def run(self, path: Path, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """All outputs of a model.

        Raises:
            IsorunError: the backend rejects the model, or fails.
        """
        lowered = self.lower(path)
        threads = self.threads if self._plugin.capabilities.sets_threads else None
        options = Options(precision=self.precision, threads=threads, padding="keep")
        config = Compiler(open_model(path, self.cache), options, self.cache).config(self._plugin)
        executable = self._plugin.compile(lowered, config)
        try:
            names = lowered.info.output_names
            return dict(zip(names, executable.run(names, feeds), strict=True))
        finally:
            executable.close()

    @property
    def _plugin(self) -> Backend:
        return registry.get(self.backend)


def outcome(
    tested: Runner, reference: Runner, path: Path, feeds: Mapping[str, np.ndarray], mask: np.ndarray | None
) -> Outcome:
    """Run a model on a backend and on the reference, and compare.

    Args:
        tested: the backend.
        reference: the reference, which computes in the widest precision that it has.
        path: the model.
        feeds: its inputs.
        mask: (batch, sequence), nonzero at real tokens; values elsewhere are not compared. ``None`` compares all.

    Raises:
        IsorunError: the reference fails.
    """
    expected = reference.run(path, feeds)
    try:
        results = tested.run(path, feeds)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Outcome(FAILS, f"{type(error).__name__}: {error}")
    tolerance = registry.get(tested.backend).capabilities.tolerance(tested.precision)
    if reason := _unlike_in_infinities(results, expected):
        return Outcome(DIFFERS, reason)
    parity = compare(results, expected, mask, DEFAULT_TOLERANCES[tolerance])
    unlike = [output for output in parity.outputs if output.reasons]  # none if there is nothing to compare
    kind = DIFFERS if any(output.elements for output in unlike) else SHAPES
    return Outcome(kind, "; ".join(parity.reasons)) if unlike else Outcome(SAME)


def _unlike_in_infinities(results: dict[str, Any], expected: dict[str, Any]) -> str:
    """Where one has a NaN or an infinity and the other has not; where both have the same, 0 is put in place of both.

    A value inside a model may be infinite, such as a score before the softmax, which an output must not be.
    """
    for name, value in expected.items():
        result = results.get(name)
        if not (isinstance(value, np.ndarray) and isinstance(result, np.ndarray)):
            continue
        if value.dtype.kind != "f" or result.dtype.kind != "f" or value.shape != result.shape:
            continue
        odd = ~(np.isfinite(value) & np.isfinite(result))
        unlike = int(np.count_nonzero(odd & (value != result) & ~(np.isnan(value) & np.isnan(result))))
        if unlike:
            return f"{name}: {unlike} of {value.size} values are NaN or infinite in one of the two only"
        results[name], expected[name] = np.where(odd, 0, result), np.where(odd, 0, value)
    return ""
