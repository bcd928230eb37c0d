"""Details of a run as names and values: how a cell ran, and where."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from isorun.types import threads_in_words
from isorun_matrix.measurement.gpu import Gpu
from isorun_matrix.report.formatting import counts, number, versions
from isorun_matrix.results.records import CellResult, Run

Facts = Iterator[tuple[str, str]]


def of_cell(cell: CellResult) -> Facts:
    """How a cell ran."""
    if cell.environment:
        yield "environment", cell.environment
    if cell.options:
        yield "options", ", ".join(f"{name} {value}" for name, value in cell.options.items())
    if (result := cell.result) is None:
        return
    ran, latency, memory = result.provenance, result.latency_ms, result.memory_mib
    yield "device", f"{ran.device}, {threads_in_words(ran.threads)}"
    yield "precision", ran.precision
    for place, operators in ran.operators.items():
        yield f"on {place}", counts(operators)
    yield "fused", counts(ran.fused) or "none"
    yield "dialect", f"{ran.dialect} (the lowered graph was {ran.cache} in the cache)"
    yield "versions", versions(ran.versions)
    yield "model", ran.fingerprint
    if memory.gpu is not None:
        yield "device memory", f"{number(memory.gpu)} MiB"
    medians = ", ".join(
        number(measured.p50) + ("" if measured.used else " (disturbed, left out)") for measured in result.rounds
    )
    yield "medians of rounds", f"{medians} ms"
    if (interval := result.p50_interval) is not None:
        ends = f"{number(interval.low)} to {number(interval.high)} ms"
        yield "interval of p50", f"{ends}, with a confidence of {interval.level:.0%}"
    if result.cpu_ms is not None:
        yield "CPU time", f"{number(result.cpu_ms)} ms for each run, all threads together"
    yield "repeated feeds", f"take {result.repeated:.2f} x as long as varied feeds of the same size"
    yield (
        "runs to warm up",
        f"{result.warmup_runs}" + ("" if result.steady else "; their times were not steady yet"),
    )
    if memory.before_load is not None:
        yield "memory", f"{number(memory.before_load)} MiB before the model was loaded"
    yield "notes", "; ".join(latency.notes) or "none"
    if result.load_average:
        yield "load average", f"{result.load_average[0]:.2f} at the start"
    if result.waited is not None:
        yield "waited", f"threads waited for a core for {result.waited:.1%} of the time"
    if result.stolen is not None:
        yield "stolen", f"a hypervisor gave the cores to others for {result.stolen:.1%} of the time"


def of_run(run: Run) -> Facts:
    """The machine and the software of a run."""
    recorded, cpu = run.environment, run.environment.cpu
    quota = "" if cpu.cgroup_quota is None else f", a quota of {cpu.cgroup_quota:g}"
    yield "started", run.created
    yield "rounds", f"{run.spec.rounds}, with seed {run.seed}"
    yield "processor", f"{cpu.model} ({cpu.architecture})"
    yield "machine", recorded.host + ("" if recorded.virtualization is None else f", {recorded.virtualization}")
    yield "cores", f"{cpu.usable_cores} usable of {cpu.cores} ({cpu.affinity}){quota}"
    variables = ", ".join(f"{name}={value}" for name, value in recorded.variables.items())
    yield (
        "settings",
        ("" if recorded.nice is None else f"nice {recorded.nice}; ")
        + (variables or "no environment variable of a thread pool is set"),
    )
    yield "features", ", ".join(cpu.flags) or "unknown"
    yield "governor", cpu.governor or "unknown"
    if recorded.memory_mib is not None:
        yield "memory", f"{recorded.memory_mib / 1024:.1f} GiB"
    for gpu in recorded.gpus:
        yield "GPU", _gpu(gpu)
    if recorded.load_average is not None:
        yield "load average", ", ".join(f"{load:.2f}" for load in recorded.load_average) + " at the start of the run"
    yield "system", f"{recorded.os}, kernel {recorded.kernel}"
    yield "python", recorded.python
    yield "versions", versions(recorded.packages)
    yield from isolated(run)
    for name, environment in recorded.environments.items():
        if environment.failure is None:
            yield f"packages in {name}", versions(environment.packages)


def spec(run: Run) -> str:
    """The spec of a run, with the defaults that are not empty, as YAML."""
    return yaml.safe_dump(run.spec.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True)


def isolated(run: Run) -> Facts:
    """The isolated environments, with what runs there. Cells of one that is not available say why."""
    for name, environment in run.environment.environments.items():
        if environment.failure is None:
            labels = ", ".join(dict.fromkeys(cell.label for cell in run.cells if cell.environment == name))
            where = f"Python {environment.python}, a worker of {labels}"
            yield f"environment {name}", f"{where}; the latency includes the way to the worker and back"


def _gpu(gpu: Gpu) -> str:
    name, driver, clock, maximum = (
        "?" if value is None else str(value) for value in (gpu.name, gpu.driver, gpu.clock_mhz, gpu.most_clock_mhz)
    )
    memory = "?" if gpu.memory_mib is None else f"{gpu.memory_mib / 1024:.0f}"
    throttled = f", throttled: {', '.join(gpu.throttled_by)}" if gpu.throttled_by else ""
    return f"{name}, {memory} GiB, driver {driver}, {clock} of {maximum} MHz{throttled}"
