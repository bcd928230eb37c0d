"""Simulates another system for isorun: with this folder on PYTHONPATH and ISORUN_TEST_SYSTEM=darwin or win32.

Modules of isorun that import ``os``, ``socket`` and others get them without the names that the system lacks, and cannot
import what it does not have; other packages, which are built for this system, get the real ones. /proc, /sys and
/etc/machine-id are hidden. A text file that is opened in the locale's encoding is an error, and on Windows so is the
removal or the renaming of an open file. Processes, paths and linkers stay those of this system.
"""

import builtins
import ctypes
import importlib
import io
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any

SYSTEM = os.environ.get("ISORUN_TEST_SYSTEM", "")
HIDDEN = ("/proc", "/sys", "/etc/machine-id")

LINUX_ONLY = {
    "os": "sched_getaffinity sched_setaffinity sched_getscheduler memfd_create MFD_CLOEXEC pidfd_open eventfd "
    "posix_fadvise posix_fallocate splice copy_file_range getrandom O_DIRECT O_TMPFILE fdatasync waitid",
    "socket": "MSG_CMSG_CLOEXEC SO_PEERCRED SOCK_SEQPACKET",
    "time": "CLOCK_BOOTTIME clock_gettime_ns",
}
NOT_ON_WINDOWS = {
    "os": "fork forkpty register_at_fork killpg getpgid setsid getuid geteuid getgid getegid getgroups chown lchown "
    "fchown fchmod wait3 wait4 WNOHANG WNOWAIT WEXITED P_PID pread pwrite preadv pwritev sysconf getloadavg nice uname "
    "O_CLOEXEC O_NOFOLLOW O_DIRECTORY O_NONBLOCK O_SYNC set_blocking sendfile mkfifo posix_spawn sync statvfs "
    "getpriority setpriority PRIO_PROCESS lockf pipe2 openpty",
    "signal": "SIGKILL SIGSTOP SIGCONT SIGHUP SIGUSR1 SIGUSR2 SIGALRM SIGQUIT SIGPIPE SIGCHLD SIGBUS alarm setitimer "
    "ITIMER_REAL ITIMER_VIRTUAL pthread_kill pthread_sigmask SIG_BLOCK SIG_SETMASK sigwait pause",
    "socket": "AF_UNIX send_fds recv_fds SCM_RIGHTS CMSG_SPACE CMSG_LEN",
    "select": "poll epoll",
    "time": "clock_gettime tzset",
}
MISSING = {"darwin": {"syslog"}, "win32": {"fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog"}}


class View(types.ModuleType):
    """A module without some names, and with others replaced."""

    def __init__(self, module: types.ModuleType, hidden: set[str], **replaced: Any) -> None:
        super().__init__(module.__name__)
        vars(self).update(_module=module, _hidden=hidden, **replaced)

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on {SYSTEM}")
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


def views() -> dict[str, types.ModuleType]:
    names: dict[str, set[str]] = {}
    for table in (LINUX_ONLY, *([NOT_ON_WINDOWS] if SYSTEM == "win32" else [])):
        for module, hidden in table.items():
            names[module] = names.get(module, set()) | {*hidden.split()}
    replaced: dict[str, dict[str, Any]] = {
        "sys": {"platform": SYSTEM},
        "platform": {"system": lambda: {"darwin": "Darwin", "win32": "Windows"}[SYSTEM]},
        "ctypes": {"CDLL": c_library},
    }
    if SYSTEM == "win32":
        replaced |= {"os": {"open": open_file}, "subprocess": {"Popen": start_process}}
    modules = {*names, *replaced}
    return {
        name: View(importlib.import_module(name), names.get(name, set()), **replaced.get(name, {})) for name in modules
    }


def c_library(name: str | None, *arguments: Any, **named: Any) -> Any:
    if name is None and SYSTEM == "win32":
        raise TypeError("LoadLibrary() argument 1 must be str, not None")
    return types.SimpleNamespace() if name is None else ctypes.CDLL(name, *arguments, **named)


def open_file(path: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
    if Path(path).is_dir():
        raise PermissionError(13, "Permission denied", path)
    return os.open(path, flags, mode, **named)


def start_process(*arguments: Any, **named: Any) -> Any:
    import subprocess

    if any(named.get(name) for name in ("pass_fds", "preexec_fn", "start_new_session", "process_group", "umask")):
        raise ValueError("pass_fds and the options of POSIX are not supported on Windows")
    return subprocess.Popen(*arguments, **named)


def locking(descriptor: int, mode: int, count: int) -> None:
    """``msvcrt.locking``, which locks bytes from the position on."""
    import fcntl

    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if mode == 2 else 0), count, 0, os.SEEK_CUR)
    except OSError as error:
        raise PermissionError(13, "Permission denied") from error


def caller(variables: Any) -> str:
    """The name of the module that imports something, also if it runs as ``__main__``."""
    spec = (variables or {}).get("__spec__")
    return getattr(spec, "name", None) or (variables or {}).get("__name__", "")


def by_isorun() -> bool:
    """Whether the code that called this, through modules that work on files, is isorun's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and caller(frame.f_globals) in ("pathlib", "shutil", "tempfile", "contextlib"):
        frame = frame.f_back
    return caller(frame.f_globals).startswith("isorun")


def hide_files() -> None:
    def hides(path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and str(path).startswith(HIDDEN)

    def hidden(function: Any) -> Any:
        def call(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            if hides(path):
                raise FileNotFoundError(2, "No such file or directory", str(path))
            return function(path, *arguments, **named)

        return call

    for name in ("stat", "lstat", "open", "readlink", "scandir", "listdir"):
        setattr(os, name, hidden(getattr(os, name)))
    real = hidden(io.open)

    def open_text(
        path: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *rest: Any, **named: Any
    ) -> Any:
        if encoding is None and "b" not in mode:
            if caller(sys._getframe(1).f_globals).startswith("isorun"):
                raise EncodingWarning(f"{path} is opened in the encoding of the locale")
            encoding = "locale"
        return real(path, mode, buffering, encoding, *rest, **named)

    io.open = builtins.open = open_text


def keep_open_files() -> None:
    """Have the removal and renaming of a file fail while this process has it open, or mapped."""
    scan, read_link, open_ = os.scandir, os.readlink, io.open

    def used() -> set[str]:
        paths = set()
        with scan("/proc/self/fd") as descriptors:
            for descriptor in descriptors:
                try:
                    paths.add(read_link(descriptor.path))
                except OSError:
                    continue
        with open_("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths.update(line.split(maxsplit=5)[5].strip() for line in maps if "/" in line)
        return paths

    def careful(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            for path in arguments if by_isorun() else ():
                if isinstance(path, str | os.PathLike) and "dir_fd" not in named:
                    name = os.path.realpath(path)
                    inside = name + os.sep
                    if any(file == name or file.startswith(inside) for file in used()):
                        raise PermissionError(13, "The process cannot access the file because it is in use", str(path))
            return function(*arguments, **named)

        return call

    for name in ("unlink", "remove", "rename", "replace"):
        setattr(os, name, careful(getattr(os, name)))


def install() -> None:
    simulated, real = views(), builtins.__import__
    constants = {"LK_LOCK": 1, "LK_NBLCK": 2, "locking": locking}
    msvcrt = types.ModuleType("msvcrt")
    vars(msvcrt).update(constants)

    def import_(name: str, globals: Any = None, *rest: Any, **named: Any) -> Any:
        if caller(globals).split(".")[0].startswith("isorun"):
            if name in MISSING[SYSTEM]:
                raise ModuleNotFoundError(f"No module named {name!r} on {SYSTEM}", name=name)
            if name == "msvcrt" and SYSTEM == "win32":
                return msvcrt
            if name in simulated:
                return simulated[name]
        return real(name, globals, *rest, **named)

    if SYSTEM == "win32":
        keep_open_files()
    hide_files()
    warnings.filterwarnings("error", category=EncodingWarning, module=r"isorun")
    builtins.__import__ = import_


if SYSTEM:
    install()
