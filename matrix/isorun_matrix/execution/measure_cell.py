"""Measure one cell: open a session, run it, time it, and compare its outputs, in a process that does nothing else.

With an isolated environment, the session's worker is a second process, and the latency includes the way there and
back, as it does for any caller of such a session.

Time and memory are measured before the comparison with the reference, which takes memory as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from isorun import Session
from isorun.errors import BackendFailed
from isorun.system.threads import usable_cores
from isorun_matrix.execution import job_main
from isorun_matrix.jobs import Cell, CellJob
from isorun_matrix.measurement import feeds, gpu, parity, statistics
from isorun_matrix.measurement.figures import Measurement, Memory
from isorun_matrix.measurement.process_usage import family, peak_resident_mib, resident_mib, waited_ns
from isorun_matrix.measurement.timing import latencies, warm_up
from isorun_matrix.results.layout import FEEDS, REFERENCE_OUTPUTS, SAMPLES

_NS_PER_MS = 1e6
_DEVICE_RUNS = 100  # timed by the device's own events, where it has any
_WIDTHS = {"fp64": 64, "fp32": 32, "fp16": 16, "bf16": 16, "int8": 8}


def measure(job: CellJob, folder: Path) -> Measurement:
    """Measure a cell, and write the raw samples into ``folder``.

    Raises:
        BackendFailed: the runtime failed, or computes in another precision than required.
    """
    cell, reference, files = job.cell, job.reference, Path(job.reference_folder)
    names = feeds.timed(reference.cases)
    timed = [feeds.load(files / FEEDS, name) for name in names]
    load_average, before = os.getloadavg(), resident_mib()

    start = perf_counter_ns()
    session = Session(
        job.model.path,
        cell.backend,
        environment=cell.environment,
        precision=cell.precision,
        threads=cell.threads,
        options=cell.options,
        outputs=job.model.outputs,
    )
    loaded = perf_counter_ns()
    session.run(None, timed[0])
    first = perf_counter_ns()
    warmup_runs = warm_up(session, timed, cell.warmup, cell.seconds)
    waited_before, begun = waited_ns(), perf_counter_ns()
    samples = latencies(session, timed, cell.repetitions, cell.seconds)
    waited, ended = waited_ns(), perf_counter_ns()
    memory = Memory(before, peak_resident_mib(), gpu.held_mib(family()))
    on_device = session.device_times(timed[0], _DEVICE_RUNS)

    feeds_of_samples = np.arange(len(samples)) % len(timed)
    feeds.save(folder / SAMPLES, {"latency": {"ns": samples, "feeds": feeds_of_samples}})
    with session:
        provenance = session.provenance
        require_precision(cell, provenance.precision)
        compared = parity.check(session, files / FEEDS, files / REFERENCE_OUTPUTS, reference, cell.tolerance)
    counts = [reference.tokens[name] for name in names]
    tokens = None if None in counts else int(np.array(counts)[feeds_of_samples].sum())
    return Measurement(
        parity=compared,
        latency_ms=statistics.latency(samples),
        device_ms=None if on_device is None else statistics.latency(on_device * _NS_PER_MS),
        spread_ms=statistics.spread(samples),
        throughput=statistics.throughput(samples, rows=cell.batch * len(samples), tokens=tokens),
        load_ms=(loaded - start) / _NS_PER_MS,
        first_run_ms=(first - loaded) / _NS_PER_MS,
        warmup_runs=warmup_runs,
        memory_mib=memory,
        load_average=load_average,
        waited=waited_share(waited_before, waited, (ended - begun) * (provenance.threads or usable_cores())),
        threads=provenance.threads,
        provenance=provenance,
        notes=reference.notes,
    )


def waited_share(before: int | None, after: int | None, thread_time: int) -> float | None:
    """The share of the time of all threads in which one could have run and had no core; ``None`` if unknown.

    Args:
        before, after: the accumulated waiting times, in nanoseconds.
        thread_time: the time between, times the number of threads, in nanoseconds.
    """
    return None if before is None or after is None else max(0, after - before) / thread_time


def require_precision(cell: Cell, reported: str) -> None:
    """Check that a runtime computes in the required precision.

    It may report several, joined by ``+``, of which none may be narrower: a network in bf16 can keep a layer in fp32.

    Raises:
        BackendFailed: it does not.
    """
    parts = reported.split("+")
    narrower = [part for part in parts if _WIDTHS.get(part, 0) < _WIDTHS.get(cell.precision, 0)]
    if cell.precision not in parts or narrower:
        remedy = ". The model is already quantized: use precisions: [int8]" if "int8" in narrower else ""
        raise BackendFailed(f"{cell.backend} must compute in {cell.precision}, but reports {reported}{remedy}")


if __name__ == "__main__":
    job_main.main(CellJob, measure)
