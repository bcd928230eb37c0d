"""A cell of a run from what is stored of it: its trial and its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from isorun_matrix.measurement.aggregate import Measured, aggregate
from isorun_matrix.results import reader
from isorun_matrix.results.layout import SAMPLES
from isorun_matrix.results.records import (
    MEASURED,
    CellResult,
    JobResult,
    LoadResult,
    PlannedCell,
    RecordedSpec,
    RoundResult,
    TrialResult,
)


class Stored(Protocol):
    """What is stored of cells, by the names and keys of cells: the folder of a run."""

    def trial(self, name: str, key: str) -> TrialResult | None: ...
    def rounds(self, name: str, key: str) -> list[RoundResult]: ...
    def round_folder(self, name: str, key: str, number: int) -> Path: ...
    def load(self, name: str, key: str, scenario: Mapping[str, Any]) -> LoadResult | None: ...


def assemble(folder: Stored, planned: PlannedCell, spec: RecordedSpec) -> CellResult:
    """The results of a cell under the key that belongs to the run.

    Args:
        folder: of the run.
        planned: the cell in ``run.json``.
        spec: of the run.

    Raises:
        SpecError: a file is damaged.
    """
    trial = None if planned.key is None else folder.trial(planned.id, planned.key)
    rounds = [] if planned.key is None else folder.rounds(planned.id, planned.key)
    measured = [result for result in rounds if result.status in MEASURED]
    if trial is None and not rounds:
        status = "pending" if planned.failure is None else "skipped"
        return CellResult(**planned.identity, status=status, reason=planned.failure)
    state: dict[str, Any] = _status(trial, rounds, spec.rounds)
    if measured:
        places = [folder.round_folder(planned.id, planned.key or "", result.round.number) for result in measured]
        state["result"] = aggregate(
            None if trial is None else trial.result,
            [_measured(result, place) for result, place in zip(measured, places, strict=True)],
        )
        if state["status"] == "ok" and state["result"].parity.verdict == "fail":
            state |= {"status": "parity-failed", "reason": state["result"].parity.summary}
        quality = state["result"].quality
        if state["status"] == "ok" and quality and spec.quality and (lack := quality.shortfall(spec.quality.minimum)):
            state |= {"status": "quality-failed", "reason": lack}
        state["kept"] = planned.failure
    loads = [folder.load(planned.id, planned.key or "", scenario) for scenario in spec.load]
    state["loads"] = [load for load in loads if load is not None]
    results: list[JobResult] = [*([] if trial is None else [trial]), *rounds, *state["loads"]]
    wall_s = sum(result.wall_s or 0 for result in results)
    return CellResult(**planned.identity, started=results[0].started, wall_s=wall_s, **state)


def _status(trial: TrialResult | None, rounds: list[RoundResult], wanted: int) -> dict[str, Any]:
    """The status before parity: that of the last process, unless enough others measured."""
    last: JobResult | None = rounds[-1] if rounds else trial
    enough = sum(result.status in MEASURED for result in rounds) >= wanted
    if trial is not None and trial.status not in MEASURED and not enough:
        last = trial
    if last is None or last.status in MEASURED or enough:
        return {"status": "ok" if rounds and trial is not None else "pending"}
    return {name: getattr(last, name) for name in ("status", "reason", "remedy", "log")}


def _measured(result: RoundResult, place: Path) -> Measured:
    assert result.result is not None
    samples = reader.read_samples(place / SAMPLES)
    return Measured(result.round.number, result.round.position, result.started or "", result.result, samples)
