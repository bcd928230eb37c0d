"""What a process shares between all of its code, and a script that reports what a backend changes of it.

The script runs in the interpreter of the backend's environment, which has isorun but not this package::

    python process_state.py REQUEST RESULT FOLDER
"""

from __future__ import annotations

import ctypes
import decimal
import gc
import importlib.util
import itertools
import json
import locale
import logging
import multiprocessing
import os
import random
import re
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

_STATUS = ("Umask", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Seccomp", "THP_enabled")
_KERNEL_FILES = ("comm", "oom_score_adj", "coredump_filter", "timerslack_ns")
_PRCTL_GET = {"dumpable": 3, "keeps capabilities": 7}  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h; the children of children that have ended become this process's
_SHARED_MODULES = (
    *("builtins", "os", "os.path", "sys", "time", "threading", "json", "signal", "warnings", "asyncio", "logging"),
    *("multiprocessing", "random", "socket", "subprocess", "tempfile"),
    *("numpy", "numpy.linalg", "numpy.random", "onnx"),
)
_SENDING = ("socket.connect", "socket.sendto", "socket.sendmsg")
_LISTENING = "0A"  # linux/tcp_states.h
_NAMED = 5  # members of a mapping that are named
_WATCHED_SECONDS = 0.3
_THREAD_COUNTS = re.compile(r"openblas|libgomp|libi?omp|libmkl_rt")
_COUNTERS = (
    "omp_get_max_threads",
    *(f"{name}openblas_get_num_threads{bits}" for name in ("", "scipy_") for bits in ("", "64_")),
)


def _status() -> dict[str, str]:
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return {key: value.strip() for key, _, value in lines if key in _STATUS}


def _environment() -> dict[str, str]:
    """The variables that C code sees; those of os.environ may differ. OpenMP registers itself in one."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    pairs = {}
    for number in itertools.count():
        entry = entries[number]
        if entry is None:
            break
        name, _, value = entry.decode(errors="replace").partition("=")
        pairs[name] = value
    return {name: value for name, value in {**os.environ, **pairs}.items() if not name.startswith("__KMP_REGISTERED")}


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _rounding() -> tuple[Any, ...]:
    """The rounding mode and whether denormal numbers are flushed: flags of this thread, and of those it starts."""
    tiny, small = np.array([1e-40, -1e-40], np.float32), np.array([2e-38], np.float32)
    sums = np.array([1, -1], np.float32) + np.array([2**-25, -(2**-25)], np.float32) * np.float32(1.5)
    return ctypes.CDLL(None).fegetround(), (tiny * np.float32(1)).tolist(), (small / 4).tolist(), sums.tolist()


def _thread_counts() -> dict[str, int]:
    """The number of threads of each library of matrix products or of OpenMP that this process has loaded."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    counts = {}
    for path in paths:
        if _THREAD_COUNTS.search(Path(path).name):
            library = ctypes.CDLL(path)
            for name in _COUNTERS:
                if function := getattr(library, name, None):
                    counts[f"{Path(path).name}: {name}"] = function()
    return counts


def _streams() -> list[Any]:
    """What the three standard streams are, for Python and for C."""
    targets = [str(Path(f"/proc/self/fd/{number}").readlink()) for number in range(3)]
    flags = [os.get_blocking(number) for number in range(3)]
    streams = (sys.stdin, sys.stdout, sys.stderr)
    settings = [(id(stream), stream.encoding, stream.errors, stream.line_buffering) for stream in streams]
    return [*targets, *flags, *settings]


def _start_method() -> str:
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _functions() -> dict[str, int]:
    """The functions of modules that everybody uses, which no one may replace."""
    return {
        f"{module}.{name}": id(value)
        for module in _SHARED_MODULES
        if importlib.util.find_spec(module)
        for name, value in vars(importlib.import_module(module)).items()
        if callable(value) and not name.startswith("_")
    }


def _loggers() -> dict[str, Any]:
    """The settings of logging that concern every logger, and of the loggers of others."""
    root = logging.root
    return {
        "root": (root.level, root.manager.disable, [*map(id, root.handlers)], [*map(id, root.filters)]),
        "classes": (id(logging.getLoggerClass()), id(logging.getLogRecordFactory()), id(logging.lastResort)),
        **{
            f"the logger {name!r}": (logger.level, logger.disabled, logger.propagate)
            for name, logger in [*root.manager.loggerDict.items()]
            if isinstance(logger, logging.Logger)
        },
    }


STATE: Mapping[str, Callable[[], Any]] = {
    "environment variables": _environment,
    "the working directory": os.getcwd,
    "the file mode mask": _umask,
    "the folder of temporary files": tempfile.gettempdir,
    "the locale": lambda: locale.setlocale(locale.LC_ALL),
    "the time zone": lambda: time.tzname,
    "NumPy's handling of floating-point errors": lambda: (np.geterr(), np.geterrcall(), np.getbufsize()),
    "how NumPy prints": lambda: repr(np.get_printoptions()),
    "the state of the global random generators": lambda: {
        "random": random.getstate(),
        "numpy.random": repr(np.random.get_state()),  # noqa: NPY002
    },
    "signal handlers": lambda: [signal.getsignal(number) for number in sorted(signal.valid_signals())],
    "timers": lambda: [signal.getitimer(timer)[1] for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL)],
    "the settings of logging": _loggers,
    "filters of warnings": lambda: (list(warnings.filters), id(warnings.showwarning)),
    "hooks of the interpreter": lambda: (
        *(id(hook) for hook in (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook)),
        *(sys.gettrace(), sys.getprofile(), sys.getrecursionlimit(), sys.getswitchinterval()),
        *(sys.getdlopenflags(), sys.get_int_max_str_digits(), threading.stack_size()),
    ),
    "where modules are found": lambda: [*sys.path],
    "garbage collection": lambda: (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0),
    "the decimal context": lambda: repr(decimal.getcontext()),
    "the default timeout of sockets": socket.getdefaulttimeout,
    "how multiprocessing starts processes": _start_method,
    "functions of other modules": _functions,
    "CPU affinity": lambda: sorted(os.sched_getaffinity(0)),
    "the priority": lambda: (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
    "resource limits": lambda: [resource.getrlimit(limit) for limit in range(16)],
    "rounding, or how denormal numbers are computed": _rounding,
    "the number of threads of other libraries": _thread_counts,
    "the standard streams": _streams,
    "signal masks or handlers of the process": _status,
    "settings of the process": lambda: {
        **{name: Path(f"/proc/self/{name}").read_text(encoding="utf-8") for name in _KERNEL_FILES},
        **{name: ctypes.CDLL(None).prctl(number, 0, 0, 0, 0) for name, number in _PRCTL_GET.items()},
    },
}
"""What to call it, and how to look it up. Linux only."""
_WATCHED: Mapping[str, Callable[[], Any]] = {
    "environment variables": lambda: dict(os.environ),
    "the file mode mask": lambda: _status().get("Umask"),  # os.umask would change it
    **{what: STATE[what] for what in ("the working directory", "signal handlers", "CPU affinity")},
    **{what: STATE[what] for what in ("filters of warnings", "the settings of logging", "the standard streams")},
}
"""What a call may not change for a while either, since other threads use it. Safe to look up beside a call."""


@contextmanager
def watched() -> Iterator[set[str]]:
    """Yields a set for what changes, even for a while, in the state that is watched from another thread."""
    before = {what: function() for what, function in _WATCHED.items()}
    changes: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            changes.update(changed(before, {what: function() for what, function in _WATCHED.items()}))
            ended.wait(0.0001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield changes
    finally:
        ended.set()
        watcher.join()


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs, by name. What was added to a mapping counts only for environment variables."""
    changes = []
    for what, value in before.items():
        now = after[what]
        if isinstance(value, dict):
            keys = [key for key in value if key not in now or now[key] != value[key]]
            keys += [key for key in now if what == "environment variables" and key not in value]
            if keys:
                changes.append(f"{what} ({', '.join(keys[:_NAMED])})")
        elif now != value:
            changes.append(what)
    return changes


def look() -> dict[str, Any]:
    """The current state."""
    return {what: function() for what, function in STATE.items()}


@contextmanager
def captured(path: Path, *descriptors: int) -> Iterator[None]:
    """Redirect file descriptors to a file, so that C code is captured too."""
    c_library = ctypes.CDLL(None)

    def flush() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        c_library.fflush(None)

    flush()
    kept = [os.dup(number) for number in descriptors]
    with path.open("ab") as file:
        for number in descriptors:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        flush()
        for number, copy in zip(descriptors, kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def use(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Compile, run, report and close each model, and look at the state after each step.

    Args:
        request: ``name`` and ``config`` of the backend, and ``models``: pairs of a lowered model and a file of feeds;
            ``failing`` is such a pair whose run fails, or ``None``.
        folder: for what is printed.

    Returns:
        ``changed``: pairs of a step and what it changed. ``connected``: addresses. ``printed``: what was written to
        stdout. ``logged``: what runs but the first wrote to stderr. ``children``: the number of child processes left.
        ``shared``: shared memory that was mapped after a step. ``temporary``: temporary files after the first model;
        some runtimes keep one. ``written``: those that were opened without being new, as far as Python's code did.
    """
    from isorun.isolation.worker.server import Server
    from isorun.plugin.backend import SupportsBinding
    from isorun.system.process_usage import family, open_files

    with suppress(ModuleNotFoundError):  # each adds a filter of warnings, and backends may transform or evaluate graphs
        import onnx_ir  # noqa: F401
        import scipy.special  # noqa: F401

    connected: dict[str, None] = {}
    written: dict[str, None] = {}
    shared: set[str] = set()
    temporary = tempfile.gettempdir()

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _SENDING and arguments[0].family != socket.AF_UNIX:
            if not _is_own(arguments[1], open_files):
                connected[str(arguments[1])] = None
        elif event == "open" and isinstance(arguments[0], str | bytes):
            path, _, flags = arguments
            parent, name = os.path.split(os.fsdecode(path))
            if parent == temporary and flags & os.O_CREAT and not flags & os.O_EXCL:
                written[name] = None

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.addaudithook(audit)
    with watched():  # the first thread of a process adds a handler of the C library's own (SIGSETXID)
        look()  # which loads libraries of its own
    before = look()
    changed_at: dict[str, str] = {}

    def step(what: str, function: Callable[[], Any], *descriptors: int) -> None:
        with captured(folder / "stdout", 1), captured(folder / "stderr", *descriptors), watched() as changes:
            function()
        shared.update(_shared_memory(family()))
        if what == "compile()" and not number:  # the runtime was imported, and what that changes may be restored
            changes.clear()
        for name in (*changed(before, look()), *(f"{name}, for a while" for name in changes - changed_at.keys())):
            changed_at.setdefault(name, what)

    (folder / "stderr").touch()
    usual: list[str] = []
    server = Server()
    step("availability()", lambda: server.backend(request["name"]))
    for number, (model, path) in enumerate(request["models"]):
        feeds = dict(np.load(path))
        arguments = {"name": request["name"], "model": model, "config": request["config"]}
        outputs = [spec["name"] for spec in model["info"]["outputs"]]
        step("compile()", lambda: server.compile(number, **arguments))  # noqa: B023 - called at once
        for repetition in range(3):
            descriptors = (2,) if repetition else ()
            step("run()", lambda: server.executables[number][1].run(outputs, feeds), *descriptors)  # noqa: B023
        with captured(folder / "stdout", 1), captured(folder / "stderr", 2), watched() as changes:
            end = time.monotonic() + _WATCHED_SECONDS
            while time.monotonic() < end:
                server.executables[number][1].run(outputs, feeds)
        for name in changes:
            changed_at.setdefault(name, "run(), for a while")
        executable = server.executables[number][1]
        if isinstance(executable, SupportsBinding):
            step("bind()", lambda: executable.bind(feeds, dict.fromkeys(outputs)).run())  # noqa: B023
        step("report()", lambda: server.report(number))  # noqa: B023
        step("close()", lambda: server.close(number))  # noqa: B023
        damaged = {**arguments, "model": {**model, "path": str(_damaged(Path(model["path"]), folder))}}
        step("a failed compile()", lambda: _failing(server, number, damaged, {}))  # noqa: B023
        usual = usual or [path.name for path in Path(tempfile.gettempdir()).iterdir()]
    if request["failing"]:
        model, path = request["failing"]
        arguments = {"name": request["name"], "model": model, "config": request["config"]}
        step("a failed run()", lambda: _failing(server, len(request["models"]), arguments, dict(np.load(path))))
    gc.collect()
    return {
        "changed": [[what, name] for name, what in changed_at.items()],
        "printed": (folder / "stdout").read_text(errors="replace"),
        "logged": (folder / "stderr").read_text(errors="replace"),
        "connected": list(connected),
        "children": len(family()) - 1,
        "temporary": usual,
        "written": list(written),
        "shared": sorted(shared),
    }


def _is_own(address: Any, open_files: Callable[[], list[str]]) -> bool:
    """Whether an address is that of a server on this machine which this process or a child of it is."""
    host, port = address[:2] if isinstance(address, tuple) else ("", 0)
    if host not in ("127.0.0.1", "::1", "localhost"):
        return False
    lines = [line for name in ("tcp", "tcp6") for line in _lines(Path("/proc/self/net", name))]
    sockets = {
        f"socket:[{fields[9]}]"
        for fields in map(str.split, lines)
        if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port
    }
    return not sockets.isdisjoint(open_files())


def _lines(path: Path) -> list[str]:
    """Those of a table of the kernel; none if it lacks it."""
    return path.read_text(encoding="utf-8").splitlines()[1:] if path.exists() else []


def _shared_memory(processes: Iterable[int]) -> Iterator[str]:
    """The names of the shared memory that processes have mapped."""
    for process in processes:
        with suppress(OSError):  # it has ended
            yield from re.findall(r"/dev/shm/(\S+)", Path(f"/proc/{process}/maps").read_text(encoding="utf-8"))


def _damaged(path: Path, folder: Path) -> Path:
    """A model's file that ends too early."""
    copy = folder / "damaged.onnx"
    content = path.read_bytes()
    copy.write_bytes(content[: len(content) // 2])
    return copy


def _failing(server: Any, number: int, arguments: Mapping[str, Any], feeds: Mapping[str, Any]) -> None:
    """Compile a model and run it on feeds; either may fail."""
    outputs = [spec["name"] for spec in arguments["model"]["info"]["outputs"]]
    with suppress(Exception):
        server.compile(number, **arguments)
        with suppress(Exception):
            server.executables[number][1].run(outputs, feeds)
        server.close(number)


if __name__ == "__main__":
    result = Path(sys.argv[2])
    os.chdir(sys.argv[3])
    result.write_text(
        json.dumps(use(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), result.parent)), encoding="utf-8"
    )
