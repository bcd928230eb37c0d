"""Measure a cell in one round: open a session, warm it up, and time it, in a process that does nothing else.

It pauses before each turn of its measured runs, so that the other cells of the round have theirs, and after the last.

With an isolated environment, the session's worker is a second process, and the latency includes the way there and
back, as it does for any caller of such a session.

Time and memory are measured before the comparison with the reference, which takes memory as well.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from isorun.system import portable
from isorun.system.process_usage import family, peak_resident_mib, resident_mib
from isorun.tuning.timing import settle
from isorun_matrix.execution.processes import main
from isorun_matrix.execution.processes.main import Paused
from isorun_matrix.execution.processes.session import named, open_session, require_precision, resources
from isorun_matrix.jobs import CellJob
from isorun_matrix.measurement import energy, feeds, gpu, parity, timing, turns
from isorun_matrix.measurement.figures import Energy, Measurement, Memory, Repetition
from isorun_matrix.measurement.statistics import latencies
from isorun_matrix.results.layout import FEEDS, REFERENCE_OUTPUTS, SAMPLES

_NS_PER_MS = 1e6
_DEVICE_RUNS = 100  # timed by the device's own events, where it has any
_REPETITION = 0.2  # of the measured time, for repeating one set of feeds


def measure(job: CellJob, folder: Path, pause: Callable[[Paused], None]) -> Measurement:
    """Measure a cell once, and write the raw samples into ``folder``. Raises ``BackendFailed`` if the runtime failed,
    or computes in another precision than required."""
    cell, reference, files = job.cell, job.reference, Path(job.reference_folder)
    names = feeds.timed(reference.cases)
    timed = [feeds.load(files / FEEDS, name) for name in names]
    varied = [feeds.load(files / FEEDS, name) for name in feeds.VARIED]
    load_average, before = portable.load_average(), resident_mib()

    start = perf_counter_ns()
    session = open_session(job)
    loaded = perf_counter_ns()
    session.run(None, timed[0])
    first = perf_counter_ns()
    warmed = timing.warm_up(session, timed, cell.warmup, cell.seconds)
    state, processes = resources(), family()  # before the counters, which open the files of GPUs
    runs, usage, counters = timing.TimedRuns(session, timed, job.seed), turns.Usage(), energy.Counters()
    plan = turns.divide(
        *(cell.turns, cell.repetitions, cell.seconds),
        feeds=len(timed),
        typical=warmed.typical or first - loaded,
    )
    gc.collect()
    for left in turns.measure(runs, plan, cell.threads, processes, usage, counters):
        settle(processes)
        pause(replace(state, turns=left))
        session.run(None, timed[(len(runs.samples) - 1) % len(timed)])  # its memory back into the processor's caches
    settle(processes)
    pause(state)
    samples = runs.samples
    memory = Memory(before, peak_resident_mib(), gpu.held_mib(family()))
    typical, whole = float(np.median(samples)), float(samples.sum()) / 1e9
    repetition = timing.repeated_and_varied(session, timed[0], varied, typical, _REPETITION * whole)
    on_device = session.device_times(timed[0], _DEVICE_RUNS)

    feeds_of_samples = np.arange(len(samples)) % len(timed)
    feeds.save(folder / SAMPLES, {"latency": {"ns": samples, "feeds": feeds_of_samples}})
    with session:
        provenance = session.provenance
        require_precision(cell, provenance.precision)
        outputs = [(names[index], named(session, kept)) for index, (_, kept) in sorted(runs.kept.items())]
    compared = parity.check(outputs, files / FEEDS, files / REFERENCE_OUTPUTS, reference, cell.tolerance)
    counts = [reference.tokens[name] for name in names]
    tokens = None if None in counts else int(np.array(counts)[feeds_of_samples].sum())
    waited, stolen = usage.shares(provenance.threads)
    cpu_ns = usage.counted.ran
    return Measurement(
        parity=compared,
        latency_ms=latencies.latency(samples),
        cpu_ms=None if cpu_ns is None else cpu_ns / len(samples) / _NS_PER_MS,
        energy=Energy(usage.joules / len(samples), counters.names) if counters.names else None,
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
        sampled={names[index]: run for index, (run, _) in sorted(runs.kept.items())},
        repetition=Repetition(*(time / _NS_PER_MS for time in repetition)),
        provenance=provenance,
        notes=reference.notes,
    )


if __name__ == "__main__":
    main.main(CellJob, measure)
