"""The figures of a cell from its rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from isorun_matrix.measurement import parity
from isorun_matrix.measurement.figures import Energy, Figures, Measurement, Memory, Round, Trial
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
    calm = [measured for measured in rounds if not measured.measurement.disturbed] or list(rounds)
    taken = [measured.measurement for measured in calm]

    def middle(read: Callable[[Measurement], float | None]) -> float | None:
        values = [value for measurement in taken if (value := read(measurement)) is not None]
        return median(values) if values else None

    medians = [measurement.latency_ms.p50 or measurement.latency_ms.mean for measurement in taken]
    samples = np.concatenate([measured.samples for measured in calm])
    first = taken[0]
    energies = [measurement.energy for measurement in taken if measurement.energy is not None]
    by_device = [measurement.device_ms for measurement in taken if measurement.device_ms is not None]
    tokens = middle(lambda measurement: measurement.throughput.tokens_per_s)
    return Figures(
        parity=parity.merge(
            [*([] if trial is None else [trial.parity]), *(measured.measurement.parity for measured in rounds)]
        ),
        latency_ms=replace(latencies.latency(samples), p50=median(medians)),
        p50_interval=latencies.rank_interval(medians),
        cpu_ms=middle(lambda measurement: measurement.cpu_ms),
        energy=Energy(median(energy.joules for energy in energies), energies[0].counters) if energies else None,
        device_ms=latencies.of_rounds(by_device) if by_device else None,
        spread_ms=latencies.spread(samples),
        throughput=Throughput(
            median(measurement.throughput.requests_per_s for measurement in taken),
            median(measurement.throughput.rows_per_s for measurement in taken),
            tokens,
        ),
        load_ms=median(measurement.load_ms for measurement in taken),
        first_run_ms=median(measurement.first_run_ms for measurement in taken),
        warmup_runs=int(median(measurement.warmup_runs for measurement in taken)),
        steady=2 * sum(measurement.steady for measurement in taken) > len(taken),
        memory_mib=Memory(
            middle(lambda measurement: measurement.memory_mib.before_load),
            middle(lambda measurement: measurement.memory_mib.peak),
            middle(lambda measurement: measurement.memory_mib.gpu),
        ),
        load_average=first.load_average,
        waited=middle(lambda measurement: measurement.waited),
        stolen=middle(lambda measurement: measurement.stolen),
        threads=first.threads,
        repeated=median(measurement.repetition.repeated_ms / measurement.repetition.varied_ms for measurement in taken),
        quality=None if trial is None else trial.quality,
        provenance=taken[-1].provenance,
        notes=first.notes,
        rounds=[
            Round(
                measured.number,
                measured.position,
                measured.started,
                measured.measurement.latency_ms.p50 or measured.measurement.latency_ms.mean,
                measured.measurement.cpu_ms,
                measured.measurement.waited,
                measured.measurement.stolen,
                measured.measurement.disturbed,
                any(measured is used for used in calm),
                measured.measurement.memory_mib.of_session,
            )
            for measured in rounds
        ],
    )
