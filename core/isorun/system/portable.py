"""What only some systems have, with a portable answer: memory files, locks, process groups, users, affinity, load.

Code elsewhere asks this module and :mod:`isorun.system.process_usage` rather than ``os``, ``fcntl`` or ``/proc``. An
answer of ``None`` means that the system does not report it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

if sys.platform == "win32":
    import errno
    import msvcrt
else:
    import fcntl

Lock = TypeVar("Lock")

CAN_PASS_DESCRIPTORS = hasattr(socket, "send_fds")
"""Whether a process can hand sockets and memory to another, which isolated environments need."""

HAS_OWNERS = hasattr(os, "geteuid")
"""Whether files have an owner and a mode. On Windows, access lists protect the folders of a user instead."""

PLAIN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
"""Flags for ``os.open``: bytes, and not inherited by child processes."""
NO_LINK = PLAIN | getattr(os, "O_NOFOLLOW", 0)
"""The same, and not through a link."""

RECEIVE_PRIVATELY = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""Flags for ``recvmsg``: child processes do not inherit descriptors that arrive. 0 on macOS, where they do."""

_LOCKED = 1 << 30  # the byte that a lock is on, where locks are on bytes: none that anybody reads or writes


def after_fork_in_child(call: Callable[[], object]) -> None:
    """Have something called in each forked process. Systems without fork never call it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


class Forked(Protocol):
    """An object that is notified of a fork."""

    def _forked(self) -> None:
        """In the child: do not wait for anything that exists in the parent only."""


_locks: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()
_notified: weakref.WeakSet[Forked] = weakref.WeakSet()


def lock_of(owner: Any, name: str, make: Callable[[], Lock]) -> Lock:
    """A lock for an attribute of an object, which is a new one in every forked process: the thread that holds it may
    exist in the parent only.
    """
    _locks.setdefault(owner, {})[name] = make
    return make()


def notify_of_forks(owner: Forked) -> None:
    """Notify an object of every fork while it exists, once there are new locks."""
    _notified.add(owner)


def _notify() -> None:
    for owner, locks in list(_locks.items()):
        for name, make in locks.items():
            setattr(owner, name, make())
    for owner in list(_notified):
        owner._forked()


after_fork_in_child(_notify)


def cores() -> frozenset[int] | None:
    """The cores that this process may use."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def load_average() -> tuple[float, float, float] | None:
    """The load of the machine in the last 1, 5 and 15 minutes."""
    return os.getloadavg() if hasattr(os, "getloadavg") else None


def niceness() -> int | None:
    """The priority of this process."""
    return os.nice(0) if hasattr(os, "nice") else None


def memory_bytes() -> int | None:
    """The memory of the machine."""
    if not hasattr(os, "sysconf"):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def c_library_function(name: str) -> Callable[..., int] | None:
    """A function of the C library, where it has one of that name."""
    import ctypes

    if sys.platform == "win32":
        return None
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    return function


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets. None has the number of a standard stream, even if this process has closed those: in a
    child process, that is another file, and libraries write to it."""
    first, second = socket.socketpair()
    return _above_standard(first), _above_standard(second)


def _above_standard(end: socket.socket) -> socket.socket:
    if sys.platform == "win32" or end.fileno() > 2:
        return end
    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def anonymous_file(name: str) -> int:
    """A descriptor of a file without a name, which appends: in memory on Linux, a temporary file elsewhere."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(prefix=f"{name}-", buffering=0) as file:
            descriptor = os.dup(file.fileno())
    if sys.platform != "win32":
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
    return descriptor


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Bytes of a file, without moving its position."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, size)
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)


def write_at(descriptor: int, content: bytes | memoryview, offset: int) -> None:
    """Write all of some bytes at a place of a file that nobody else writes."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def sync(descriptor: int) -> None:
    """Have what was written to a file stored."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def shared_folder() -> Path:
    """The folder for temporary files of all users, whatever ``TMPDIR`` is."""
    return Path(tempfile.gettempdir() if sys.platform == "win32" else "/tmp")


def lock(descriptor: int, *, wait: bool) -> None:
    """Lock a file for this process alone, until the descriptor is closed. Raises ``BlockingIOError`` if another process
    has it, unless this waits for it."""
    if sys.platform == "win32":
        while True:
            os.lseek(descriptor, _LOCKED, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return
            except OSError as error:
                if wait and error.errno == errno.EDEADLK:  # LK_LOCK gives up after ten seconds
                    continue
                raise BlockingIOError(error.errno, error.strerror) from error
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def lock_folder(folder: Path, *, alone: bool) -> int | None:
    """Lock a folder against removal, or alone for removing it; a rename of it keeps the lock.

    Windows has no such locks: it refuses to rename a folder in which a file is open.

    Returns:
        A descriptor to close, with which the lock ends; ``None`` where there are no locks.

    Raises:
        BlockingIOError: a process holds a conflicting lock.
        OSError: the folder does not exist or is a link.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | NO_LINK)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        # Some file systems have no locks: entries can be read there, but not cleared.
        if alone or isinstance(error, BlockingIOError):
            os.close(descriptor)
            raise
    return descriptor


def own_group(command: list[str], **options: object) -> subprocess.Popen[bytes]:
    """Start a process that Ctrl-C at the terminal does not reach, in a group of its own."""
    group: dict[str, object] = {"start_new_session": True}
    if sys.platform == "win32":
        group = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    process: subprocess.Popen[bytes] = subprocess.Popen(command, **group, **options)  # type: ignore[call-overload]
    return process


def wait_unreaped(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process, and keep its id from others where the system can."""
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and the rest of its group; on Windows, the process alone."""
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError if sys.platform == "darwin" else ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # macOS: a group of zombies alone is a PermissionError
