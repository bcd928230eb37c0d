"""A cell of a run from what is stored of it: its trial, and its rounds combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import compress
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from isorun_matrix.measurement import parity
from isorun_matrix.measurement.figures import COMMON, Figures, Round, Trial
from isorun_matrix.measurement.statistics import latencies
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
        samples = [reader.read_samples(place / SAMPLES) for place in places]
        state["result"] = _figures(None if trial is None else trial.result, measured, samples)
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


def _figures(trial: Trial | None, rounds: Sequence[RoundResult], samples: Sequence[np.ndarray]) -> Figures:
    """Combine one or more rounds. Disturbed ones are left out of the figures, unless all are disturbed.

    Args:
        trial: what was found before; its parity counts.
        rounds: those that measured.
        samples: of each of them: (runs,), int64, nanoseconds.
    """
    measurements = [result.result for result in rounds if result.result is not None]
    all_disturbed = all(measurement.disturbed for measurement in measurements)
    used = [all_disturbed or not measurement.disturbed for measurement in measurements]
    taken = list(compress(measurements, used))
    times = np.concatenate(list(compress(samples, used)))

    medians = [measurement.latency_ms.p50 or measurement.latency_ms.mean for measurement in taken]
    by_device = [measurement.device_ms for measurement in taken if measurement.device_ms is not None]
    special: dict[str, Any] = {
        "parity": parity.merge(
            [*([] if trial is None else [trial.parity]), *(measurement.parity for measurement in measurements)]
        ),
        "latency_ms": replace(latencies.latency(times), p50=median(medians)),
        "device_ms": latencies.of_rounds(by_device) if by_device else None,
        "steady": 2 * sum(measurement.steady for measurement in taken) > len(taken),
        "provenance": taken[-1].provenance,
    }
    others = {field.name for field in COMMON} - special.keys()
    return Figures(
        **special,
        **{name: _middle([getattr(measurement, name) for measurement in taken]) for name in others},
        p50_interval=latencies.rank_interval(medians),
        spread_ms=latencies.spread(times),
        repeated=median(measurement.repetition.ratio for measurement in taken),
        quality=None if trial is None else trial.quality,
        rounds=[
            Round(
                result.round.number,
                result.round.position,
                result.started or "",
                measurement.latency_ms.p50 or measurement.latency_ms.mean,
                measurement.cpu_ms,
                measurement.waited,
                measurement.stolen,
                measurement.disturbed,
                is_used,
                measurement.memory_mib.of_session,
                measurement.repetition.ratio,
            )
            for result, measurement, is_used in zip(rounds, measurements, used, strict=True)
        ],
    )


def _middle(values: Sequence[Any]) -> Any:
    """The median of numbers, also of those in figures with members; the first of anything else. What is ``None`` does
    not count."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    first = known[0]
    if is_dataclass(first) and not isinstance(first, type):
        return replace(
            first, **{field.name: _middle([getattr(value, field.name) for value in known]) for field in fields(first)}
        )
    return type(first)(median(known)) if isinstance(first, int | float) else first
