"""Changes to what all of a process shares."""

import asyncio
import atexit
import ctypes
import decimal
import faulthandler
import gc
import locale
import logging
import logging.config
import mmap
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from flaws.base import Flawed, backend, doing, running
from isorun.plugin.backend import Binding
from isorun.types import Availability
from isorun_conformance.fakes import Right

C = ctypes.CDLL(None)


def flush_denormals():
    """Set the flags of the processor by code, as compilers do for -ffast-math."""
    code = bytes.fromhex("0fae5c24fc814c24fc408000000fae5424fcc3")  # stmxcsr; or 0x8040; ldmxcsr; ret
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()


def allow_nested_loops():
    """As nest_asyncio does."""
    asyncio.run = lambda main: asyncio.new_event_loop().run_until_complete(main)


ACTS = {
    "environment variables": (
        lambda: os.environ.update(OMP_NUM_THREADS="1"),
        lambda: C.setenv(b"OMP_NUM_THREADS", b"1", 1),
    ),
    "the working directory": (lambda: os.chdir("/"),),
    "the file mode mask": (lambda: os.umask(0o007),),
    "the folder of temporary files": (lambda: setattr(tempfile, "tempdir", "/"),),
    "the locale": (lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8" if locale.setlocale(0) == "C" else "C"),),
    "the time zone": (lambda: (os.environ.update(TZ="Asia/Tokyo"), time.tzset()),),
    "NumPy's handling of floating-point errors": (lambda: np.seterr(all="ignore"),),
    "how NumPy prints": (lambda: np.set_printoptions(precision=3),),
    "the state of the global random generators": (lambda: random.seed(0), lambda: np.random.seed(0)),  # noqa: NPY002
    "signal handlers": (lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),),
    "timers": (lambda: signal.setitimer(signal.ITIMER_REAL, 100, 100),),
    "the settings of logging": (
        lambda: logging.basicConfig(level=logging.DEBUG),
        lambda: logging.disable(logging.CRITICAL),
        lambda: logging.getLogger("asyncio").setLevel(logging.CRITICAL),
        lambda: logging.config.dictConfig({"version": 1}),  # which disables what has a logger by then
    ),
    "filters of warnings": (lambda: warnings.simplefilter("ignore"),),
    "hooks of the interpreter": (
        lambda: setattr(sys, "excepthook", print),
        lambda: sys.setrecursionlimit(10**5),
        lambda: sys.setswitchinterval(0.1),
        lambda: sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL),
        lambda: sys.set_int_max_str_digits(0),
        lambda: threading.stack_size(2**20),
    ),
    "where modules are found": (lambda: sys.path.append("engine"),),
    "garbage collection": (gc.disable, gc.freeze),
    "the decimal context": (lambda: setattr(decimal.getcontext(), "prec", 5),),
    "the default timeout of sockets": (lambda: socket.setdefaulttimeout(1),),
    "how multiprocessing starts processes": (lambda: multiprocessing.set_start_method("spawn"),),
    "functions of other modules": (
        lambda: setattr(np, "matmul", np.dot),
        lambda: setattr(time, "sleep", print),
        allow_nested_loops,
    ),
    "CPU affinity": (lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),),
    "the priority": (lambda: os.nice(1),),
    "resource limits": (lambda: resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999)),),
    "rounding, or how denormal numbers are computed": (lambda: C.fesetround(0x400), flush_denormals),
    "the number of threads of other libraries": (lambda: _openblas()(1),),
    "the standard streams": (
        lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2),
        lambda: os.set_blocking(0, False),
        lambda: sys.stdout.reconfigure(errors="replace", encoding="latin-1"),
    ),
    "signal masks or handlers of the process": (
        lambda: C.signal(signal.SIGTERM, ctypes.c_void_p(1)),
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]),
        faulthandler.enable,
    ),
    "settings of the process": (
        lambda: Path("/proc/self/comm").write_text("engine", encoding="utf-8"),
        lambda: C.prctl(4, 0, 0, 0, 0),  # PR_SET_DUMPABLE
    ),
}
"""What each changes, as the suite calls it."""


def _openblas():
    library = next(
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        if "openblas" in line
    )
    functions = ctypes.CDLL(library)
    names = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_")  # of NumPy 2, and 1
    return next(getattr(functions, name) for name in names if hasattr(functions, name))


def change_what_is_inherited():
    """Change what every child process inherits, once."""
    os.umask(0o007)
    os.environ["ENGINE_HOME"] = "/engine"
    os.setpriority(os.PRIO_PROCESS, 0, 3)
    resource.setrlimit(resource.RLIMIT_CPU, (9999, 9999))


ChangesWhatIsInherited = doing("compile", change_what_is_inherited)
PinsItself = doing("compile", ACTS["CPU affinity"][0])
SilencesNumpy = doing("run", ACTS["NumPy's handling of floating-point errors"][0])
StopsCollecting = doing("close", lambda: gc.disable())
PrintsToStdout = doing("run", lambda: print("running on the accelerator"))
PrintsInC = doing("compile", lambda: C.puts(b"loaded"))
PrintsAtExit = doing("compile", lambda: atexit.register(print, "bye"))
LogsEveryRun = doing("run", lambda: os.write(2, b"running"))
LeavesAFile = doing("compile", lambda: Path("engine.bin").touch())
LeavesTemporaryFiles = doing("compile", lambda: tempfile.mkstemp())
LeavesADaemon = doing("compile", lambda: subprocess.run(["sh", "-c", "sleep 20 &"], check=True))
MovesWhileItCompiles = doing("compile", lambda: moved("/"))
LeavesAChild = doing("compile", lambda: subprocess.Popen(["sleep", "20"]))


def moved(folder):
    """Work in another folder for a while."""
    before = Path.cwd()
    os.chdir(folder)
    time.sleep(0.01)
    os.chdir(before)


def connect():
    """Look for a server that is not there."""
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", 9), timeout=1)


def silenced():
    """Move the standard streams away for as long as the engine computes."""
    usual, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    time.sleep(0.002)
    os.dup2(usual, 2)
    os.close(usual)
    os.close(nowhere)


SilencesRuns = doing("run", silenced)


@cache
def import_engine():
    """As JAX and PyTorch, whose imports set variables and a filter of warnings, which a plugin restores."""
    os.environ["ENGINE_HOME"] = "/engine"
    with warnings.catch_warnings(action="ignore"):
        time.sleep(0.02)
    del os.environ["ENGINE_HOME"]


HonestWithAnImport = doing("compile", import_engine)


def silence_warnings():
    """Ignore the warnings of all threads for as long as the engine computes."""
    with warnings.catch_warnings(action="ignore"):
        time.sleep(0.002)


def silence_logging():
    """Drop what all threads log for as long as the engine computes."""
    logging.disable(logging.CRITICAL)
    time.sleep(0.002)
    logging.disable(logging.NOTSET)


SilencesWarnings = doing("run", silence_warnings)
SilencesLogging = doing("run", silence_logging)
SharesATemporaryFile = doing("compile", lambda: Path(tempfile.gettempdir(), "engine.tmp").write_bytes(b"engine"))


class PrintsWhenLoaded(Right):
    def __init__(self, name):
        super().__init__(name)
        print("engine 1.0")


PhonesHome = doing("compile", connect)


def ask_itself():
    """A server that this process has started."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=1).close()


HonestWithAServer = doing("compile", ask_itself)


def send():
    """A datagram needs no server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"model", ("127.0.0.1", 9))


SendsDatagrams = doing("compile", send)
KeepsFilesAtHome = doing("compile", lambda: Path("~/.engine").expanduser().touch())


class ChangesWhenAsked(Right):
    def probe(self):
        os.environ["ENGINE_HOME"] = str(os.getpid())  # not what the parent has set
        return Availability(ok=True)


@running
def ChangesWhenARunFails(self, output_names, feeds):
    """What it sets for a run, it does not set back."""
    before = np.seterr(all="ignore")
    results = self.right(output_names, feeds)
    np.seterr(**before)
    return results


@backend
class SilencesNumpyWhenBound(Flawed):
    def bind(self, feeds, outputs):
        np.seterr(all="ignore")
        return Binding(self, feeds, outputs)


@backend
class LeavesSharedMemory(Flawed):
    """Unmaps it, and does not remove it."""

    def __init__(self, model, config):
        super().__init__(model, config)
        with Path(f"/dev/shm/isorun-flaw-{os.getpid()}").open("w+b") as file:
            file.truncate(4096)
            self.kept = mmap.mmap(file.fileno(), 4096)

    def close(self):
        self.kept.close()
        super().close()


class ChangesWhenItFails(Right):
    def compile(self, model, config):
        before = Path.cwd()
        os.chdir(model.path.parent)
        executable = super().compile(model, config)
        os.chdir(before)
        return executable
