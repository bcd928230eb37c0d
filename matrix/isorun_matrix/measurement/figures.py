"""The figures of one cell: of a process that measured it, and of all its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from isorun.quality import Agreement
from isorun.quality.labels import Score
from isorun.system.disturbance import is_disturbed
from isorun.types import Provenance
from isorun_matrix.measurement.parity import CellParity
from isorun_matrix.measurement.statistics.latencies import Interval, Latency, Throughput
from isorun_matrix.measurement.statistics.verdicts import NEEDED

_CACHED = 0.9  # a ratio of the times with repeated and with varied feeds below which a runtime seems to cache answers


@dataclass(frozen=True)
class Memory:
    """Memory of the process and those that it started, in MiB.

    Attributes:
        before_load: in RAM before the session was opened; ``None`` where the system does not report it, as ``peak``.
        peak: the maximum in RAM until the last measured run.
        gpu: on all GPUs after the last measured run; ``None`` where it is unknown.
    """

    before_load: float | None
    peak: float | None
    gpu: float | None

    @property
    def of_session(self) -> float | None:
        """What the session took at its peak."""
        return None if self.peak is None or self.before_load is None else self.peak - self.before_load


@dataclass(frozen=True)
class Repetition:
    """Median times of runs with one set of feeds again and again, and with sets that differ, in milliseconds."""

    repeated_ms: float
    varied_ms: float

    @property
    def ratio(self) -> float:
        """The former, divided by the latter."""
        return self.repeated_ms / self.varied_ms


@dataclass(frozen=True)
class Trial:
    """What was found before anything was measured.

    Attributes:
        parity: on every set of feeds.
        quality: what a search, or a score by labels, keeps; ``None`` if it was not measured.
    """

    parity: CellParity
    quality: Agreement | Score | None = None


@dataclass(frozen=True)
class Energy:
    """The energy of a run in joules, and the counters that measured it."""

    joules: float
    counters: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class _Common:
    """What a process measures, and what is combined over rounds: times in milliseconds, memory in MiB.

    Attributes:
        cpu_ms: the time of all threads on cores, for each run; ``None`` if the kernel does not report it.
        energy: of a run, of the whole package or GPU; ``None`` without counters.
        device_ms: latency by the device's own events; ``None`` where the backend has none.
        steady: whether times were shown to be steady when the warm-up ended, in most of the rounds.
        load_average: the system's, before the session was opened; ``None`` where it has none.
        waited: the share of the measured time in which threads could have run and had no core; ``None`` if unknown.
        stolen: the share that a hypervisor gave to others.
        threads: how many threads a run used; ``None`` where the backend does not tell.
        notes: remarks on the feeds.
    """

    parity: CellParity
    latency_ms: Latency
    cpu_ms: float | None
    energy: Energy | None = None
    device_ms: Latency | None
    throughput: Throughput
    load_ms: float
    first_run_ms: float
    warmup_runs: int
    steady: bool
    memory_mib: Memory
    load_average: Sequence[float] | None
    waited: float | None
    stolen: float | None
    threads: int | None
    provenance: Provenance
    notes: Sequence[str]


COMMON = fields(_Common)


@dataclass(frozen=True, kw_only=True)
class Measurement(_Common):
    """What one process measured.

    Attributes:
        sampled: the timed run of each set of feeds whose outputs were compared; ``parity`` is of these.
    """

    sampled: Mapping[str, int]
    repetition: Repetition

    @property
    def disturbed(self) -> bool:
        """Whether threads often had no core."""
        return is_disturbed(self.waited, self.stolen)


@dataclass(frozen=True)
class Round:
    """A cell in one round.

    Attributes:
        number: of the round, within the workload.
        position: of the cell in the shuffled order of the round.
        p50, mean: of the latencies, in milliseconds.
        used: whether the figures of the cell include it: a disturbed round is left out if another one is not.
        session_mib: what the session took in RAM at its peak, its worker included; ``None`` if unknown.
        repeated: as in :class:`Figures`.
        together: a digest of the cells of the round. Cells that are measured in different sessions may have rounds with
            the same number.
    """

    number: int
    position: int
    started: str
    p50: float
    mean: float
    cpu_ms: float | None
    waited: float | None
    stolen: float | None
    disturbed: bool
    used: bool
    session_mib: float | None = None
    repeated: float = 1.0
    together: str = ""

    @property
    def place(self) -> tuple[int, str]:
        """What the round of another cell has in common if both were measured in turn."""
        return self.number, self.together


@dataclass(frozen=True, kw_only=True)
class Figures(_Common):
    """The figures of a cell from its rounds.

    ``latency_ms.p50`` is the median of the medians of the rounds; other percentiles are of the runs of all rounds
    together. ``parity`` is the worst of the trial and all rounds. Every other figure is the median of the rounds.

    Attributes:
        p50_interval: of the median of the rounds; ``None`` with a single one.
        spread_ms: percentiles for a plot.
        repeated: the time of a run with repeated feeds, divided by that with varied feeds.
        quality: as in :class:`Trial`.
    """

    p50_interval: Interval | None
    spread_ms: Mapping[str, float]
    repeated: float
    rounds: Sequence[Round]
    quality: Agreement | Score | None = None

    @property
    def disturbed(self) -> bool:
        """Whether every round was disturbed."""
        return all(measured.disturbed for measured in self.rounds)

    @property
    def cached(self) -> bool:
        """Whether the runtime seems to answer repeated feeds from a cache: in every undisturbed round, since some may
        be chance, as one or two rounds may."""
        calm = [measured.repeated for measured in self.rounds if not measured.disturbed]
        return len(calm) >= NEEDED and max(calm) < _CACHED
