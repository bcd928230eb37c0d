"""Measure a cell in one round: open a session, warm it up, and time it, in a process that does nothing else.

With an isolated environment, the session's worker is a second process, and the latency includes the way there and
back, as it does for any caller of such a session.

Time and memory are measured before the comparison with the reference, which takes memory as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from isorun.system.disturbance import Scheduled, elapsed, scheduled, share
from isorun.system.process_usage import family, peak_resident_mib, resident_mib
from isorun.system.threads import usable_cores
from isorun_matrix.execution.processes import main
from isorun_matrix.execution.processes.session import named, open_session, require_precision
from isorun_matrix.jobs import CellJob
from isorun_matrix.measurement import feeds, gpu, parity, timing
from isorun_matrix.measurement.figures import Measurement, Memory, Repetition, is_disturbed
from isorun_matrix.measurement.statistics import latencies
from isorun_matrix.measurement.timing import Timed
from isorun_matrix.results.layout import FEEDS, REFERENCE_OUTPUTS, SAMPLES

_NS_PER_MS = 1e6
_ATTEMPTS, _PATIENCE = 5, 5e9  # to measure while nothing else runs: how often, and for how many nanoseconds
_DEVICE_RUNS = 100  # timed by the device's own events, where it has any
_REPETITION = 0.2  # of the measured time, for repeating one set of feeds


def measure(job: CellJob, folder: Path) -> Measurement:
    """Measure a cell once, and write the raw samples into ``folder``.

    Raises:
        BackendFailed: the runtime failed, or computes in another precision than required.
    """
    cell, reference, files = job.cell, job.reference, Path(job.reference_folder)
    names = feeds.timed(reference.cases)
    timed = [feeds.load(files / FEEDS, name) for name in names]
    varied = [feeds.load(files / FEEDS, name) for name in feeds.VARIED]
    load_average, before = os.getloadavg(), resident_mib()

    start = perf_counter_ns()
    session = open_session(job)
    loaded = perf_counter_ns()
    session.run(None, timed[0])
    first = perf_counter_ns()
    warmed = timing.warm_up(session, timed, cell.warmup, cell.seconds)
    timed_runs = partial(timing.latencies, session, timed, cell.repetitions, cell.seconds, job.seed)
    taken, counted, then, duration = undisturbed(timed_runs, cell.threads)
    samples = taken.samples
    memory = Memory(before, peak_resident_mib(), gpu.held_mib(family()))
    typical, whole = float(np.median(samples)), float(samples.sum()) / 1e9
    repetition = timing.repeated_and_varied(session, timed[0], varied, typical, _REPETITION * whole)
    on_device = session.device_times(timed[0], _DEVICE_RUNS)

    feeds_of_samples = np.arange(len(samples)) % len(timed)
    feeds.save(folder / SAMPLES, {"latency": {"ns": samples, "feeds": feeds_of_samples}})
    with session:
        provenance = session.provenance
        require_precision(cell, provenance.precision)
        outputs = [(names[index], named(session, kept)) for index, (_, kept) in sorted(taken.kept.items())]
    compared = parity.check(outputs, files / FEEDS, files / REFERENCE_OUTPUTS, reference, cell.tolerance)
    counts = [reference.tokens[name] for name in names]
    tokens = None if None in counts else int(np.array(counts)[feeds_of_samples].sum())
    waited, stolen = _shares(counted, then, duration, provenance.threads)
    cpu_ns = elapsed(counted.ran, then.ran)
    return Measurement(
        parity=compared,
        latency_ms=latencies.latency(samples),
        cpu_ms=None if cpu_ns is None else cpu_ns / len(samples) / _NS_PER_MS,
        device_ms=None if on_device is None else latencies.latency(on_device * _NS_PER_MS),
        throughput=latencies.throughput(samples, rows=cell.batch * len(samples), tokens=tokens),
        load_ms=(loaded - start) / _NS_PER_MS,
        first_run_ms=(first - loaded) / _NS_PER_MS,
        warmup_runs=warmed.runs,
        steady=warmed.steady,
        memory_mib=memory,
        load_average=load_average,
        waited=waited,
        stolen=stolen,
        threads=provenance.threads,
        sampled={names[index]: run for index, (run, _) in sorted(taken.kept.items())},
        repetition=Repetition(*(time / _NS_PER_MS for time in repetition)),
        provenance=provenance,
        notes=reference.notes,
    )


def undisturbed(measure: Callable[[], Timed], threads: int | None) -> tuple[Timed, Scheduled, Scheduled, int]:
    """Measure, again if that was disturbed: a burst of another program costs no round of all cells then.

    Returns:
        The last measurement, what the kernel had counted before and after it, and its duration in nanoseconds.
    """
    until = perf_counter_ns() + _PATIENCE
    for _ in range(_ATTEMPTS):
        counted, begun = scheduled(), perf_counter_ns()
        taken = measure()
        ended, then = perf_counter_ns(), scheduled()
        duration = ended - begun
        if ended + duration > until or not is_disturbed(*_shares(counted, then, duration, threads)):
            break
    return taken, counted, then, duration


def _shares(
    before: Scheduled, after: Scheduled, duration: int, threads: int | None
) -> tuple[float | None, float | None]:
    """The shares of a time in which threads waited for a core, and which a hypervisor took."""
    waited = share(before.waited, after.waited, duration * (threads or usable_cores()))
    return waited, share(before.stolen, after.stolen, duration * (os.cpu_count() or 1))


if __name__ == "__main__":
    main.main(CellJob, measure)
