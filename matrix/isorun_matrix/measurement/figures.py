"""The figures of one cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isorun.types import Provenance
from isorun_matrix.measurement.parity import CellParity
from isorun_matrix.measurement.statistics import Latency, Spread, Throughput


@dataclass(frozen=True)
class Memory:
    """Memory of the process and those that it started, in MiB.

    Attributes:
        before_load: in RAM before the session was opened.
        peak: the maximum in RAM until the last measured run.
        gpu: on all GPUs after the last measured run; ``None`` where it is unknown.
    """

    before_load: float
    peak: float
    gpu: float | None


@dataclass(frozen=True)
class Measurement:
    """What was measured in a cell: times in milliseconds, memory in MiB.

    Attributes:
        device_ms: latency by the device's own events; ``None`` where the backend has none.
        load_ms: opening the session.
        first_run_ms: the first run.
        warmup_runs: how many runs warmed up.
        load_average: the system's, before the session was opened.
        waited: the share of the measured time in which threads could have run and had no core; ``None`` if unknown.
        threads: how many threads a run used; ``None`` where the backend does not tell.
        notes: remarks on the feeds.
    """

    parity: CellParity
    latency_ms: Latency
    device_ms: Latency | None
    spread_ms: Spread
    throughput: Throughput
    load_ms: float
    first_run_ms: float
    warmup_runs: int
    memory_mib: Memory
    load_average: Sequence[float]
    waited: float | None
    threads: int | None
    provenance: Provenance
    notes: Sequence[str]
