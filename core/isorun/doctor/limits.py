"""What the control group and the environment's variables leave a process, beside what libraries take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from isorun.system import cgroup
from isorun.system.cache import Cache
from isorun.system.threads import usable_cores
from isorun.types import Finding

_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_MIB = 1 << 20


def findings(cache: Cache, root: Path = cgroup.ROOT, own: Path = cgroup.OWN) -> Iterator[Finding]:
    """Too many threads for the cores, and too little memory for the models of the cache.

    Args:
        cache: the cache.
        root, own: where control groups are, and the file that says which is this process's.
    """
    yield from _quota(cgroup.cpu_quota(root, own))
    yield from _variables()
    yield from _memory(cache, cgroup.memory(root, own))


def _quota(quota: float | None) -> Iterator[Finding]:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    whole = max(1, int(quota or 1))
    if quota is None or len(cores) <= whole:
        return
    yield Finding(
        "cores",
        "warning",
        f"the control group allows {quota:g} cores, and {len(cores)} can be seen",
        f"a session starts no more threads than the quota has cores; whatever sizes its pool by the machine, "
        f"NumPy's products among it, starts {len(cores)}, and all of them stall when the quota is spent",
        f"taskset -cp {','.join(map(str, cores[:whole]))} $$   # this shell, and what it starts",
    )


def _variables() -> Iterator[Finding]:
    usable = usable_cores()
    for name in _POOLS:
        value = os.environ.get(name, "")
        if value.isdecimal() and int(value) > usable:
            yield Finding(
                "threads",
                "warning",
                f"{name} is {value}, and this process may use {usable} cores",
                "libraries that read it start more threads than can run, which then wait for one another",
                f"export {name}={usable}",
            )


def _memory(cache: Cache, limit: cgroup.Memory | None) -> Iterator[Finding]:
    sizes = {folder: _size(folder) for folder in cache.root.glob("lowered/[!.]*")}
    if limit is None or not sizes:
        return
    largest = max(sizes, key=lambda folder: sizes[folder])
    if limit.room < sizes[largest]:
        needed = -(-(limit.limit - limit.room + 2 * sizes[largest]) // _MIB)
        yield Finding(
            "memory",
            "warning",
            f"the control group leaves {limit.room // _MIB} of its {limit.limit // _MIB} MiB, and {largest} has "
            f"{sizes[largest] // _MIB} MiB",
            "a process that goes beyond the limit is killed without an error; a session on it holds its weights",
            f"docker update --memory {needed}m --memory-swap {needed}m CONTAINER   # in Kubernetes: "
            "resources.limits.memory; under systemd: systemctl set-property UNIT MemoryMax=",
        )


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
