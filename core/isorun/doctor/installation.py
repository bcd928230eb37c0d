"""What is installed beside an interpreter, this one's or an environment's: looked at in processes of that interpreter.

Each backend has a process of its own. One that a signal ends, or that does not end, is a finding about what it was
doing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from isorun.doctor import lines
from isorun.isolation.environments import Environment
from isorun.system.cache import ENVIRONMENT_VARIABLE
from isorun.system.threads import usable_cores
from isorun.types import Finding

SECONDS = 120.0
_CALLS = 5


def findings(environment: Environment | None = None, seconds: float = SECONDS) -> list[Finding]:
    """What is wrong with the backends and their packages, each finding once.

    Args:
        environment: where; ``None`` for the interpreter that runs this.
        seconds: how long each process may take.
    """
    with _interpreter(environment) as (python, variables), ThreadPoolExecutor(usable_cores()) as pool:
        ask = partial(_ask, python, variables, seconds)
        start: Mapping[str, str] = {
            "subject": "isorun" if environment is None else "its interpreter",
            "doing": "starting",
            "command": "pip install --force-reinstall isorun" if environment is None else environment.anew(),
        }
        said = ask(start, "names")
        said += [each for some in pool.map(partial(ask, start, "backend"), _values(said, "backend")) for each in some]
        if packages := dict.fromkeys(_values(said, "package")):
            said += ask(start, "packages", *packages)
    return list(dict.fromkeys(Finding(**found) for found in _values(said, "finding")))


def _ask(
    python: Path, variables: Mapping[str, str], seconds: float, start: Mapping[str, str], *task: str
) -> list[dict[str, Any]]:
    """What a process says; where it ends too early or too late, a finding about what it did last."""
    command = [str(python), "-P", "-X", "faulthandler", "-m", "isorun.doctor.child", *task]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=variables, start_new_session=True
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        output.seek(0)
        errors.seek(0)
        text, tail = output.read().decode(errors="replace"), errors.read().decode(errors="replace")
    said = lines.told(text)
    if said and "done" in said[-1]:
        return said
    last = next((each for each in reversed(said) if "doing" in each), start)
    found = {"subject": last["subject"], "severity": "error", "why": _why(tail), "command": last["command"]}
    return [*said, {"finding": {**found, "what": f"{last['doing']} {_how(code, seconds)}"}}]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it, and whatever it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _why(errors: str) -> str:
    """What it printed last; where a signal ended it, what faulthandler says first: the innermost call."""
    lines = [line.strip() for line in errors.splitlines() if line.strip() and "thread 0x" not in line]
    fatal = next((number for number, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    chosen = lines[-1:] if fatal is None else lines[fatal : fatal + _CALLS]
    return "; ".join(chosen) or "it printed nothing"


def _how(code: int | None, seconds: float) -> str:
    if code is None:
        return f"does not end within {seconds:.0f} s"
    return f"ends the process with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"


@contextmanager
def _interpreter(environment: Environment | None) -> Iterator[tuple[Path, dict[str, str]]]:
    """An interpreter and the variables for it. What it would remember goes to a folder that is removed."""
    with tempfile.TemporaryDirectory(prefix="isorun-doctor-") as folder:
        remembered = {ENVIRONMENT_VARIABLE: folder, "XDG_CACHE_HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        if environment is None:
            yield Path(sys.executable), {**os.environ, **remembered}
        else:
            yield environment.python, {**environment.variables(links=Path(folder)), **remembered}


def _values(said: list[dict[str, Any]], key: str) -> list[Any]:
    return [each[key] for each in said if key in each]
