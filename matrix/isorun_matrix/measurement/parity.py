"""The parity of a cell: every set of feeds of its workload, run once more and compared with the reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isorun import Session
from isorun.parity import Tolerance, compare
from isorun_matrix.measurement import feeds

_LARGEST = ("max_abs", "max_rel", "rms")
_SMALLEST = ("cosine", "argmax")


def check(
    session: Session, feeds_file: Path, outputs_file: Path, workload: Mapping[str, Any], tolerance: Tolerance
) -> dict[str, Any]:
    """Compare a session with the reference.

    Args:
        session: what is judged.
        feeds_file, outputs_file: the feeds of the workload, and what the reference computed from them.
        workload: the outcome of :func:`isorun_matrix.execution.compute_reference.reference`.
        tolerance: the limits.

    Returns:
        ``verdict``; ``summary``, why it fails in a line, ``None`` where it passes; the worst of each measure;
        ``tolerance``; and each of the ``cases`` with all its reasons.
    """
    names = [spec.name for spec in session.get_outputs()]
    cases = {}
    for case in workload["cases"]:
        given = feeds.load(feeds_file, case)
        outputs = dict(zip(names, session.run(names, given), strict=True))
        expected = feeds.load(outputs_file, case)
        level = workload["token_level"]
        mask = None if workload["mask"] is None else given[workload["mask"]]
        cases[case] = compare(outputs, expected, mask, tolerance, token_level=level).as_dict()
    summary = _summary(cases)
    return {
        "verdict": "fail" if summary else "pass",
        "summary": summary,
        **{measure: _worst((parity[measure] for parity in cases.values()), max) for measure in _LARGEST},
        **{measure: _worst((parity[measure] for parity in cases.values()), min) for measure in _SMALLEST},
        "tolerance": vars(tolerance),
        "cases": cases,
    }


def _summary(cases: Mapping[str, Mapping[str, Any]]) -> str | None:
    failing = [case for case, parity in cases.items() if parity["verdict"] == "fail"]
    if not failing:
        return None
    where = "on all feeds" if len(failing) == len(cases) else f"on {', '.join(failing)}, not on the others"
    return f"{cases[failing[0]]['reasons'][0]} ({where})"


def _worst(values: Iterable[float | None], worst: Any) -> float | None:
    """``None`` where one case has no such figure, since the others cannot speak for it."""
    found = list(values)
    return None if None in found else worst(found, default=None)
