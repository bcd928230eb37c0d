"""What is looked at on each machine of a cluster before anything is measured."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isorun import __version__
from isorun.errors import BackendNotFound, BackendUnavailable
from isorun.plugin import listing, registry
from isorun.system import portable
from isorun.system.cgroup import cpu_quota
from isorun.system.packages import package_owners
from isorun_matrix.execution.cluster import priority
from isorun_matrix.measurement import machine

INSTALLATION = f"Install it there with: pip install 'isorun[ray]=={__version__}'"

_FREE_MIB = 1024
_CLOCK_SECONDS = 2.0
_PRIORITY = "Start the node with RAY_worker_niceness=0 RAY_worker_oom_score_adjustment=0 ray start ..."


def look(backends: Sequence[str], folders: Sequence[Path], started_by: int) -> dict[str, Any]:
    """What this machine is, and ``problems`` that would prevent or spoil a run, each with its remedy.

    Args:
        backends: those that the run needs here.
        folders: those that it writes to.
        started_by: the process that started this one, with the priority that the run is to have.
    """
    problems, known = [], []
    for name in backends:
        try:
            backend = listing.load(name)
            package = backend.capabilities.package
            if package is not None and not package_owners(package):
                state = registry.availability(backend)
                problems.append(f"{name}: {state.reason}. {state.remedy}")
        except BackendNotFound as error:
            problems.append(f"{error}. Install the distribution that provides it")
            continue
        except BackendUnavailable:  # a broken plugin: its cells report it
            pass
        known.append(name)
    environment, load = machine.collect(known, {}), portable.load_average()
    try:
        priority.adopt(started_by)
        priority.variables(started_by)
    except OSError as error:
        problems.append(f"Ray's priority cannot be undone ({error.strerror}). {_PRIORITY}")
    for folder in folders:
        free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free // 2**20
        if free < _FREE_MIB:
            problems.append(f"{folder} has {free} MiB free (expected at least {_FREE_MIB}). Free some space there")
    return {
        "isorun": environment.packages.get("isorun"),
        "cpu": environment.cpu.model,
        "cores": environment.cpu.usable_cores,
        "quota": cpu_quota(),
        "governor": environment.cpu.governor,
        "load": load[0] if load else None,
        "time": time.time(),
        "problems": problems,
    }


def problems_of(state: Mapping[str, Any], requested_at: float) -> Iterator[str]:
    """What keeps a machine from taking part, in the eyes of the driver.

    Args:
        state: what :func:`look` returned there.
        requested_at: the time of the request, in seconds since the epoch.
    """
    if state["isorun"] != __version__:
        yield f"it has isorun {state['isorun']}, and the driver has {__version__}. {INSTALLATION}"
    yield from state["problems"]
    if not requested_at - _CLOCK_SECONDS < state["time"] < time.time() + _CLOCK_SECONDS:
        yield f"its clock differs by {state['time'] - requested_at:.0f} s. Synchronize it (NTP)"


def described(state: Mapping[str, Any]) -> str:
    """The machine in a line."""
    quota = "" if state["quota"] is None else f", a quota of {state['quota']:g}"
    governor = f", governor {state['governor']}" if state["governor"] not in (None, "performance") else ""
    load = "" if state["load"] is None else f", load {state['load']:.1f}"
    return f"{state['cpu']}, {state['cores']} cores{quota}{governor}{load}"
