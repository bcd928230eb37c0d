"""Examines the installation of an interpreter, this one's or an environment's, in child processes of that interpreter.

Each backend has a separate process. A crash or a hang is a finding about what the process was doing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from isorun.cli.doctor import operators
from isorun.isolation.environments import Environment
from isorun.system import subprocesses
from isorun.system.cache import ENVIRONMENT_VARIABLE
from isorun.system.threads import usable_cores
from isorun.types import Finding

SECONDS = 120.0
OPERATOR_SECONDS = 1800.0
_MAX_FRAMES = 5


def findings(environment: Environment | None = None, seconds: float | None = None) -> list[Finding]:
    """The problems of the backends and their packages, each finding once.

    Args:
        environment: the environment to examine; ``None`` for the interpreter of this process.
        seconds: the time limit of each child process; ``None`` for :data:`SECONDS`.
    """
    with _interpreter(environment) as (python, variables), ThreadPoolExecutor(usable_cores()) as pool:
        ask = partial(_ask, python, variables, SECONDS if seconds is None else seconds)
        start: Mapping[str, str] = {
            "subject": "isorun" if environment is None else "its interpreter",
            "doing": "starting",
            "command": "pip install --force-reinstall isorun" if environment is None else environment.commands(),
        }
        events = ask(start, "names")
        for more in pool.map(partial(ask, start, "backend"), _values(events, "backend")):
            events += more
        if packages := dict.fromkeys(_values(events, "package")):
            events += ask(start, "packages", *packages)
    return list(dict.fromkeys(Finding(**finding) for finding in _values(events, "finding")))


def operator_findings() -> list[Finding]:
    """What has changed in the known faults of the installed runtimes; takes minutes."""
    events: list[dict[str, Any]] = []
    with _interpreter(None) as (python, variables):
        for name in operators.declaring():
            start = {"subject": f"the backend {name}", "doing": "starting", "command": f"isorun conformance {name}"}
            events += _ask(python, variables, OPERATOR_SECONDS, start, "operators", name)
    return [Finding(**finding) for finding in _values(events, "finding")]


def _ask(
    python: Path, variables: Mapping[str, str], seconds: float, start: Mapping[str, str], *task: str
) -> list[dict[str, Any]]:
    """The events that a child process reports; if it does not finish, also a finding about its last step."""
    with tempfile.TemporaryDirectory(prefix="isorun-doctor-") as folder:
        child, path = "isorun.cli.doctor.child", Path(folder) / "log"
        events, exit_ = subprocesses.ask(child, *task, python=python, timeout=seconds, env=variables, log=path)
        if events and "done" in events[-1]:
            return events
        why = _why(path.read_text(encoding="utf-8", errors="replace"))
    last = next((event for event in reversed(events) if "doing" in event), start)
    what = f"the process {exit_.how} while {last['doing']}"
    finding = {"subject": last["subject"], "severity": "error", "what": what, "why": why, "command": last["command"]}
    return [*events, {"finding": finding}]


def _why(log: str) -> str:
    """The last line of a log; after a crash, the first lines of faulthandler's traceback: the innermost calls."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and "thread 0x" not in line]
    fatal = next((number for number, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    chosen = lines[-1:] if fatal is None else lines[fatal : fatal + _MAX_FRAMES]
    return "; ".join(chosen) or "it printed nothing"


@contextmanager
def _interpreter(environment: Environment | None) -> Iterator[tuple[Path, dict[str, str]]]:
    """An interpreter and its environment variables. What it caches goes to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="isorun-doctor-") as folder:
        caches = {ENVIRONMENT_VARIABLE: folder, "XDG_CACHE_HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        if environment is None:
            yield Path(sys.executable), {**os.environ, **caches}
        else:
            yield environment.python, {**environment.variables(links=Path(folder)), **caches}


def _values(events: list[dict[str, Any]], key: str) -> list[Any]:
    return [event[key] for event in events if key in event]
