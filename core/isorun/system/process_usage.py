"""Memory, files, threads and processor time of this process and its descendants, from Linux's /proc.

Elsewhere this process alone is known, without figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from isorun.system import portable
from isorun.system.cgroup import memory_left


def family() -> list[int]:
    """The ids of this process and its living descendants, such as a session's worker."""
    parents = {}
    for process in (int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
        state, parent = stat_of(process)[:2] or ("Z", "")
        if state != "Z":
            parents[process] = int(parent)
    processes = [os.getpid()]
    for process in processes:  # grows while it is iterated
        processes += [child for child, parent in parents.items() if parent == process]
    return processes


def stat_of(process: int) -> list[str]:
    """The fields of a process in Linux's /proc/PID/stat after its name, the state first; none if it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


def resident_mib() -> float | None:
    """Memory in RAM now, including mapped files; ``None`` without /proc."""
    return _status("VmRSS")


def anonymous_mib() -> float | None:
    """Memory that is no file's, wherever it is; ``None`` without /proc. The system may drop mapped files from RAM, so
    that :func:`resident_mib` falls while a process grows."""
    sizes = [_status(name) for name in ("RssAnon", "RssShmem", "VmSwap")]
    return None if None in sizes else sum(size or 0.0 for size in sizes)


def available_mib() -> float | None:
    """The memory that new processes can have: the smaller of what the system and this control group have left.

    ``None`` without /proc.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    left = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) / 1024
    of_group = memory_left()
    return left if of_group is None else min(left, of_group / 2**20)


def return_free_memory() -> None:
    """Return what the heap of this process holds but does not use; new objects show in :func:`anonymous_mib` then.

    Does nothing where the C library has no ``malloc_trim``, as musl.
    """
    trim = portable.c_library_function("malloc_trim")
    if trim is not None:
        trim(0)


def peak_resident_mib() -> float | None:
    """The sum of the peaks of each process's memory in RAM; ``None`` without /proc.

    ``getrusage`` is no alternative: its figure starts with the size of the process that launched this one.
    """
    return _status("VmHWM")


def open_files() -> list[str]:
    """The name of the file of each open descriptor."""
    names = []
    for process in family():
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            try:
                names.append(str(descriptor.readlink()))
            except OSError:
                continue
    return names


def threads() -> int:
    """The number of threads."""
    return len(list(_tasks()))


def thread_cores() -> dict[tuple[int, int], set[int]]:
    """The cores that each thread may run on, by (process, thread)."""
    cores = {}
    for process, task in _tasks():
        try:
            cores[process, int(task.name)] = os.sched_getaffinity(int(task.name))
        except OSError:  # the thread has ended
            continue
    return cores


def processor_time() -> tuple[float, dict[tuple[int, str], tuple[float, float]]]:
    """Processor time in seconds, of ended threads too; and by (process, thread) the seconds for which it ran, and for
    which it was ready to run but waited for a core.
    """
    used, threads = 0.0, {}
    for process in family():
        used += sum(map(int, stat_of(process)[11:13])) / os.sysconf("SC_CLK_TCK")
    for process, task in _tasks():
        try:
            ran, waited, _ = map(int, (task / "schedstat").read_text(encoding="utf-8").split())
        except (OSError, ValueError):  # the thread has ended, or the kernel does not count
            continue
        threads[process, task.name] = ran / 1e9, waited / 1e9
    return used, threads


def _tasks() -> Iterator[tuple[int, Path]]:
    for process in family():
        for task in Path(f"/proc/{process}/task").glob("*"):
            yield process, task


def _status(name: str) -> float | None:
    """The sum of a size in /proc/PID/status, in MiB."""
    if not Path("/proc/self/status").is_file():
        return None
    total = 0.0
    for process in family():
        try:
            lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
        except OSError:  # it has ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
    return total / 1024
