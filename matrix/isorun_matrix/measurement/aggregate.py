"""The figures of a cell from its rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from isorun_matrix.measurement import parity
from isorun_matrix.measurement.figures import Figures, Measurement, Memory, Round, Trial
from isorun_matrix.measurement.statistics import latencies
from isorun_matrix.measurement.statistics.latencies import Throughput


@dataclass(frozen=True)
class Measured:
    """A cell in one round, as it was stored.

    Attributes:
        number, position, started: as in :class:`~isorun_matrix.measurement.figures.Round`.
        samples: (runs,), int64, nanoseconds.
    """

    number: int
    position: int
    started: str
    measurement: Measurement
    samples: np.ndarray


def aggregate(trial: Trial | None, rounds: Sequence[Measured]) -> Figures:
    """Combine one or more rounds.

    Args:
        trial: what was found before; its parity counts.
        rounds: disturbed ones are left out of the figures, unless all are disturbed.
    """
    calm = [each for each in rounds if not each.measurement.disturbed] or list(rounds)
    taken = [each.measurement for each in calm]

    def middle(read: Callable[[Measurement], float | None]) -> float | None:
        values = [value for each in taken if (value := read(each)) is not None]
        return median(values) if values else None

    medians = [each.latency_ms.p50 or each.latency_ms.mean for each in taken]
    samples = np.concatenate([each.samples for each in calm])
    typical = taken[int(np.argsort(medians)[(len(medians) - 1) // 2])]
    first = taken[0]
    tokens = middle(lambda each: each.throughput.tokens_per_s)
    return Figures(
        parity=parity.merge(
            [*([] if trial is None else [trial.parity]), *(each.measurement.parity for each in rounds)]
        ),
        latency_ms=replace(latencies.latency(samples), p50=median(medians)),
        p50_interval=latencies.rank_interval(medians),
        cpu_ms=middle(lambda each: each.cpu_ms),
        device_ms=typical.device_ms,
        spread_ms=latencies.spread(samples),
        throughput=Throughput(
            median(each.throughput.requests_per_s for each in taken),
            median(each.throughput.rows_per_s for each in taken),
            tokens,
        ),
        load_ms=median(each.load_ms for each in taken),
        first_run_ms=median(each.first_run_ms for each in taken),
        warmup_runs=int(median(each.warmup_runs for each in taken)),
        steady=2 * sum(each.steady for each in taken) > len(taken),
        memory_mib=Memory(
            median(each.memory_mib.before_load for each in taken),
            median(each.memory_mib.peak for each in taken),
            middle(lambda each: each.memory_mib.gpu),
        ),
        load_average=first.load_average,
        waited=middle(lambda each: each.waited),
        stolen=middle(lambda each: each.stolen),
        threads=first.threads,
        repeated=median(each.repetition.repeated_ms / each.repetition.varied_ms for each in taken),
        provenance=taken[-1].provenance,
        notes=first.notes,
        rounds=[
            Round(
                each.number,
                each.position,
                each.started,
                each.measurement.latency_ms.p50 or each.measurement.latency_ms.mean,
                each.measurement.cpu_ms,
                each.measurement.waited,
                each.measurement.stolen,
                each.measurement.disturbed,
                any(each is used for used in calm),
            )
            for each in rounds
        ],
    )
