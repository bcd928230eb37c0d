"""Thread pools of libraries that are larger than the CPU affinity and quota of this process."""

from __future__ import annotations

import os
from collections.abc import Iterator

from isorun.system.threads import usable_cores
from isorun.types import Finding

_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def findings() -> Iterator[Finding]:
    """Variables that request more threads than there are cores, and a CPU quota that no variable accounts for."""
    usable = usable_cores()
    for name in _VARIABLES:
        value = os.environ.get(name, "")
        if value.isdecimal() and int(value) > usable:
            yield _finding(f"{name} is {value}, but this process may use {usable} cores", name, usable)
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else usable
    if affinity > usable and not os.environ.get("OMP_NUM_THREADS"):
        what = f"the CPU quota of the control group allows {usable} of {affinity} cores, and OMP_NUM_THREADS is not set"
        yield _finding(what, "OMP_NUM_THREADS", usable)


def _finding(what: str, variable: str, threads: int) -> Finding:
    why = "libraries such as NumPy start more threads than can run at once, which slows all of them down"
    return Finding("threads", "warning", what, why, f"export {variable}={threads}")
