"""The parity of a cell: what it computed, compared with the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from isorun.parity import Tolerance, compare
from isorun.types import attended
from isorun_matrix.jobs import Reference
from isorun_matrix.measurement import feeds

_WORST: Mapping[str, Callable[..., Any]] = {"max_abs": max, "max_rel": max, "rms": max, "cosine": min, "argmax": min}


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
    outputs: Iterable[tuple[str, Mapping[str, Any]]],
    feeds_file: Path,
    outputs_file: Path,
    reference: Reference,
    tolerance: Tolerance,
) -> CellParity:
    """Compare outputs with the reference's.

    Args:
        outputs: by the name of their set of feeds: output name to array.
        feeds_file, outputs_file: the feeds of the workload, and what the reference computed from them.
        tolerance: the limits.
    """
    cases = {}
    for case, outputs_of_case in outputs:
        fed = {} if reference.mask is None else feeds.load(feeds_file, case)
        mask = attended(fed, reference.mask, marks_padding=reference.marks_padding)
        parity = compare(
            outputs_of_case, feeds.load(outputs_file, case), mask, tolerance, token_level=reference.token_level
        )
        cases[case] = parity.as_dict()
    failing = [case for case, parity in cases.items() if parity["verdict"] == "fail"]
    summary = None
    if failing:
        named = f"on {', '.join(failing)}: {len(failing)} of {len(cases)} feeds"
        where = "on all feeds" if len(failing) == len(cases) else named
        summary = f"{_reason([cases[case] for case in failing])} ({where})"
    values = {measure: [parity[measure] for parity in cases.values()] for measure in _WORST}
    verdict: Literal["pass", "fail"] = "fail" if failing else "pass"
    return CellParity(verdict, summary, **_worst(values), tolerance=tolerance, cases=cases)


def merge(parities: Sequence[CellParity]) -> CellParity:
    """The verdict on all outputs of several processes of a cell."""
    cases: dict[str, Any] = {}
    for parity in parities:
        for case, errors in parity.cases.items():
            if case not in cases or errors["verdict"] == "fail":
                cases[case] = errors
    failing = next((parity for parity in parities if parity.verdict == "fail"), None)
    values = {measure: [getattr(parity, measure) for parity in parities] for measure in _WORST}
    return CellParity(
        "pass" if failing is None else "fail",
        None if failing is None else failing.summary,
        **_worst(values),
        tolerance=parities[0].tolerance,
        cases=cases,
    )


def _reason(failing: Sequence[Mapping[str, Any]]) -> str:
    """The reason of the output that is farthest from the reference, which is what the table of a report shows."""
    outputs = [output for parity in failing for output in parity["outputs"] if output["reasons"]]
    if not outputs:
        return str(failing[0]["reasons"][0])
    worst = max(outputs, key=lambda output: inf if output["max_rel"] is None else output["max_rel"])
    return f"{worst['name']}: {worst['reasons'][0]}"


def _worst(values: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    return {measure: None if None in errors else _WORST[measure](errors) for measure, errors in values.items()}
