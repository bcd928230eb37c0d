"""Memory, files, threads and processor time of this process and its descendants, from Linux's /proc."""

from __future__ import annotations

import os
from pathlib import Path


def process_ids() -> list[int]:
    """This process and its descendants."""
    return [os.getpid(), *_descendants(os.getpid())]


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in children:
            found += [int(child), *_descendants(int(child))]
    return found


def resident_mib() -> float:
    """Resident memory in MiB."""
    pages = 0
    for pid in process_ids():
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files() -> list[str]:
    """The name of the file of each open descriptor."""
    names = []
    for pid in process_ids():
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                names.append(str(descriptor.readlink()))
            except OSError:
                continue
    return names


def threads() -> int:
    """The number of threads."""
    return sum(len(list(Path(f"/proc/{pid}/task").glob("*"))) for pid in process_ids())


def thread_cores() -> dict[tuple[int, int], set[int]]:
    """The cores that each thread may run on, by (process, thread)."""
    cores = {}
    for pid in process_ids():
        for task in Path(f"/proc/{pid}/task").glob("*"):
            try:
                cores[pid, int(task.name)] = os.sched_getaffinity(int(task.name))
            except OSError:  # the thread has ended
                continue
    return cores


def processor_ticks() -> tuple[int, dict[tuple[int, str], int]]:
    """Processor time in ticks of 10 ms: the total, ended threads included, and by (process, thread)."""
    total, by_thread = 0, {}
    for pid in process_ids():
        process = Path(f"/proc/{pid}")
        total += _ticks(process / "stat")
        for task in process.glob("task/*"):
            by_thread[pid, task.name] = _ticks(task / "stat")
    return total, by_thread


def _ticks(path: Path) -> int:
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
