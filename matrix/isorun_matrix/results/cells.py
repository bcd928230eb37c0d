"""A cell of a run from what is stored of it: its trial, and its rounds combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import compress
from statistics import median
from typing import Any

import numpy as np

from isorun_matrix.measurement import parity
from isorun_matrix.measurement.figures import COMMON, Figures, Round, Trial
from isorun_matrix.measurement.statistics import latencies
from isorun_matrix.measurement.statistics.latencies import Latency
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


def assemble(
    planned: PlannedCell,
    spec: RecordedSpec,
    trial: TrialResult | None,
    rounds: Sequence[RoundResult],
    samples: Sequence[np.ndarray],
    loads: Sequence[LoadResult],
) -> CellResult:
    """A cell of a run.

    Args:
        planned: the cell in ``run.json``.
        trial, rounds, loads: the results of the cell, rounds in their order.
        samples: of each round that measured: (runs,), int64, nanoseconds.
    """
    measured = [result for result in rounds if result.status in MEASURED]
    if trial is None and not rounds:
        status = "pending" if planned.failure is None else "skipped"
        return CellResult(**planned.identity, status=status, reason=planned.failure)
    state: dict[str, Any] = _status(trial, rounds, spec.rounds)
    if measured:
        state["result"] = _figures(None if trial is None else trial.result, measured, samples)
        if state["status"] == "ok" and state["result"].parity.verdict == "fail":
            state |= {"status": "parity-failed", "reason": state["result"].parity.summary}
        quality = state["result"].quality
        if state["status"] == "ok" and quality and spec.quality and (lack := quality.shortfall(spec.quality.minimum)):
            state |= {"status": "quality-failed", "reason": lack}
        state["kept"] = planned.failure
    results: list[JobResult[Any]] = [*([] if trial is None else [trial]), *rounds, *loads]
    wall_s = sum(result.wall_s or 0 for result in results)
    return CellResult(**planned.identity, started=results[0].started, wall_s=wall_s, loads=[*loads], **state)


def _status(trial: TrialResult | None, rounds: Sequence[RoundResult], wanted: int) -> dict[str, Any]:
    """The status before parity: that of the last process, unless enough others measured."""
    last: JobResult[Any] | None = rounds[-1] if rounds else trial
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
        "device_ms": _of_rounds(by_device),
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
                measurement.latency_ms.mean,
                measurement.cpu_ms,
                measurement.waited,
                measurement.stolen,
                measurement.disturbed,
                is_used,
                measurement.memory_mib.of_session,
                measurement.repetition.ratio,
                result.round.together,
            )
            for result, measurement, is_used in zip(rounds, measurements, used, strict=True)
        ],
    )


def _of_rounds(rounds: Sequence[Latency]) -> Latency | None:
    """The latencies of several rounds whose samples are not kept: extremes, and the medians of all other figures."""
    if not rounds:
        return None
    medians: Latency = _middle(rounds)
    return replace(
        medians,
        samples=sum(measured.samples for measured in rounds),
        min=min(measured.min for measured in rounds),
        max=max(measured.max for measured in rounds),
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
