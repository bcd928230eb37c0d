"""The parity of a cell: each set of feeds is run once more and compared with the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isorun import Session
from isorun.parity import Tolerance, compare
from isorun_matrix.jobs import Reference
from isorun_matrix.measurement import feeds

_WORST = {"max_abs": max, "max_rel": max, "rms": max, "cosine": min, "argmax": min}


@dataclass(frozen=True)
class CellParity:
    """How far a cell's outputs are from the reference's.

    Attributes:
        summary: why it fails, in a line; ``None`` if it passes.
        max_abs, max_rel, rms, cosine, argmax: the worst over all sets of feeds (:mod:`isorun.parity.measures`);
            ``None`` if any set lacks the measure, since the others cannot replace it.
        cases: ``Parity.as_dict()`` of each set of feeds.
    """

    verdict: Literal["pass", "fail"]
    summary: str | None
    max_abs: float | None
    max_rel: float | None
    rms: float | None
    cosine: float | None
    argmax: float | None
    tolerance: Tolerance
    cases: Mapping[str, Any]


def check(
    session: Session, feeds_file: Path, outputs_file: Path, reference: Reference, tolerance: Tolerance
) -> CellParity:
    """Compare a session with the reference.

    Args:
        session: the session to check.
        feeds_file, outputs_file: the feeds of the workload, and what the reference computed from them.
        reference: names the sets of feeds and the mask.
        tolerance: the limits.
    """
    names = [spec.name for spec in session.get_outputs()]
    cases = {}
    for case in reference.cases:
        arrays = feeds.load(feeds_file, case)
        outputs = dict(zip(names, session.run(names, arrays), strict=True))
        mask = None if reference.mask is None else arrays[reference.mask]
        parity = compare(outputs, feeds.load(outputs_file, case), mask, tolerance, token_level=reference.token_level)
        cases[case] = parity.as_dict()
    failing = [case for case, parity in cases.items() if parity["verdict"] == "fail"]
    summary = None
    if failing:
        where = "on all feeds" if len(failing) == len(cases) else f"on {', '.join(failing)} only"
        summary = f"{cases[failing[0]]['reasons'][0]} ({where})"
    values = {measure: [parity[measure] for parity in cases.values()] for measure in _WORST}
    worst = {measure: None if None in values[measure] else _WORST[measure](values[measure]) for measure in _WORST}
    return CellParity("fail" if failing else "pass", summary, **worst, tolerance=tolerance, cases=cases)
