"""One cell: a session opened, run, timed and compared, in a process that does nothing else.

With an environment, the session's worker there is a second process, and the way to it and back is in what is timed: it
is what a session costs whoever calls it.

The order matters. Time and memory are measured first; comparing with the reference, which takes memory of its
own, comes after. The outcome is the parent's to judge (:mod:`isorun_matrix.execution.job_status`).
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from isorun import Session
from isorun.errors import BackendFailed
from isorun.parity import Tolerance
from isorun.system.threads import usable_cores
from isorun_matrix.execution import job_main as child
from isorun_matrix.measurement import feeds, gpu, parity
from isorun_matrix.measurement import statistics as stats
from isorun_matrix.measurement.process_usage import family, peak_resident_mib, resident_mib, waited_ns
from isorun_matrix.measurement.timing import latencies, warm_up
from isorun_matrix.results.layout import FEEDS, REFERENCE_OUTPUTS, SAMPLES

_NS_PER_MS = 1e6
_DEVICE_RUNS = 100  # timed by the device's own events, where it has any
_WIDTHS = {"fp64": 64, "fp32": 32, "fp16": 16, "bf16": 16, "int8": 8}


def measure(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Measure a :class:`isorun_matrix.execution.plan.Cell` (with ``references``, the folder of its workload, and
    ``reference``, the outcome there).

    Raises:
        BackendFailed: the runtime failed, or reports another precision than the one asked for.
    """
    references, workload = Path(job["references"]), job["reference"]
    names = feeds.timed(workload["cases"])
    given = [feeds.load(references / FEEDS, name) for name in names]
    load_average, before = os.getloadavg(), resident_mib()

    start = perf_counter_ns()
    session = Session(
        workload["path"],
        job["backend"],
        environment=job["environment"],
        precision=job["precision"],
        threads=job["threads"],
        options=job["options"],
        outputs=workload["outputs"],
    )
    loaded = perf_counter_ns()
    session.run(None, given[0])
    first = perf_counter_ns()
    warmed = warm_up(session, given, job["warmup"], job["seconds"])
    waited_before, begun = waited_ns(), perf_counter_ns()
    samples = latencies(session, given, job["repetitions"], job["seconds"])
    waited, ended = waited_ns(), perf_counter_ns()
    peak = peak_resident_mib()
    on_gpu = gpu.held_mib(family())
    on_device = session.device_times(given[0], _DEVICE_RUNS)

    which = np.arange(len(samples)) % len(given)
    feeds.save(folder / SAMPLES, {"latency": {"ns": samples, "feeds": which}})
    with session:
        provenance = session.provenance.as_dict()
        _check_precision(job, provenance["precision"])
        found = parity.check(
            session, references / FEEDS, references / REFERENCE_OUTPUTS, workload, Tolerance(**job["tolerance"])
        )
    tokens = [workload["tokens"][name] for name in names]
    return {
        "parity": found,
        "latency_ms": stats.latency(samples),
        "device_ms": None if on_device is None else stats.latency(on_device * _NS_PER_MS),
        "spread_ms": stats.spread(samples),
        "throughput": stats.throughput(
            samples,
            rows=job["batch"] * len(samples),
            tokens=None if None in tokens else int(np.array(tokens)[which].sum()),
        ),
        "load_ms": (loaded - start) / _NS_PER_MS,
        "first_run_ms": (first - loaded) / _NS_PER_MS,
        "warmup_runs": warmed,
        "memory_mib": {"before_load": before, "peak": peak, **({} if on_gpu is None else {"gpu": on_gpu})},
        "load_average": list(load_average),
        "waited": _share(waited_before, waited, (ended - begun) * (provenance["threads"] or usable_cores())),
        "threads": provenance["threads"],
        "provenance": provenance,
        "notes": workload["notes"],
    }


def _share(before: int | None, waited: int | None, whole: int) -> float | None:
    """The part of the whole time of all threads in which one could have run, and had no core."""
    return None if before is None or waited is None else max(0, waited - before) / whole


def _check_precision(job: dict[str, Any], reported: str) -> None:
    """Refuse a runtime that says it computes in something narrower than was asked for, or in nothing of the kind.

    It may report several, joined by ``+``: a network in bf16 can keep a layer in fp32.
    """
    asked, parts = job["precision"], reported.split("+")
    narrower = [part for part in parts if _WIDTHS.get(part, 0) < _WIDTHS.get(asked, 0)]
    if asked not in parts or narrower:
        what_to_do = ". A model that is quantized already runs under precisions: [int8]" if "int8" in narrower else ""
        raise BackendFailed(
            f"{job['backend']} was asked for {asked} and reports that it computes in {reported}{what_to_do}"
        )


if __name__ == "__main__":
    child.main(measure)
