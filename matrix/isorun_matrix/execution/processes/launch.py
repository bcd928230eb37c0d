"""Run a job in a process of its own. Its status tells how the process ended, and what outcome it wrote."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from isorun.system import subprocesses
from isorun.system.subprocesses import Exit
from isorun_matrix.execution.processes.main import Paused
from isorun_matrix.jobs import from_json
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.layout import LOG, OUTCOME

_GRACE_SECONDS = 1.0  # for a process to write its stack when its time is up


class Process:
    """A job in a process, which may pause so that others can run. As a context manager, it is killed on leaving.

    Args:
        results: receives the folder of the job.
        module: of this package, whose main function does the job (:mod:`isorun_matrix.execution.processes.main`).
        job: a dataclass of :mod:`isorun_matrix.jobs`, as plain data.
        time_limit: in seconds, pauses not included.
    """

    def __init__(self, results: RunFolder, module: str, job: Mapping[str, Any], time_limit: float) -> None:
        self.folder = results.start({"time_limit": time_limit, "job": job})
        self._started = now()
        self._time_limit = time_limit
        self._worked = 0.0
        self._exit: Exit | None = None
        command = subprocesses.python_module(f"isorun_matrix.execution.processes.{module}", str(self.folder))
        self._child = subprocesses.Child(command, log=self.folder / LOG, channel=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()

    def proceed(self) -> Paused | None:
        """Let it work until it pauses, ends, or reaches its time limit. Returns what it reports when it pauses;
        ``None`` once it has ended."""
        start = time.monotonic()
        limit = start + self._time_limit - self._worked
        end = limit + _GRACE_SECONDS
        channel = self._child.channel
        assert channel is not None
        try:
            channel.send(str(limit))
            message = channel.receive(max(0.01, end - start))
        except OSError:  # a time-out, or it ended before it read
            message = ""
        if message:
            self._worked += time.monotonic() - start
            return from_json(Paused, json.loads(message))
        self._exit = self._child.wait(max(0.0, end - time.monotonic()))
        if self._exit is None:
            self._child.kill()
            self._exit = replace(self._child.wait(), timeout=self._time_limit)
        self._worked += time.monotonic() - start
        return None

    def take_status(self) -> dict[str, Any]:
        """How it ended: the members of :class:`isorun_matrix.results.records.JobResult` from ``started`` to
        ``result``."""
        assert self._exit is not None
        outcome = status(replace(self._exit, seconds=self._worked), self.folder, self._time_limit)
        (self.folder / OUTCOME).unlink(missing_ok=True)
        return {"started": self._started, **outcome}


def run_job(
    results: RunFolder,
    module: str,
    job: Mapping[str, Any],
    time_limit: float,
    step: Callable[[int], None] = lambda left: None,  # noqa: ARG005
) -> tuple[Path, dict[str, Any]]:
    """Run a job without a pause, and return its folder and how it ended. ``step`` is called where it could pause, with
    the number of turns that are left; the other arguments are those of :class:`Process`."""
    with Process(results, module, job, time_limit) as process:
        while (paused := process.proceed()) is not None:
            step(paused.turns)
        return process.folder, process.take_status()


def now() -> str:
    """The time in UTC, to the second, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def status(ended: Exit, folder: Path, time_limit: float) -> dict[str, Any]:
    """The status of a job that has ended, whose time limit is in seconds: the members of
    :class:`isorun_matrix.results.records.JobResult` from ``status`` to ``result``. ``log`` is given only where it says
    more than the reason."""
    path = folder / OUTCOME
    outcome: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    finished = " after the work was finished" if outcome else ""
    fields: dict[str, Any] = {"wall_s": ended.seconds, "result": None, "log": None}
    if ended.timeout is not None:
        reason = f"stopped at its time limit of {time_limit:g} s{finished}; the log ends with its stack"
        return fields | {"status": "timeout", "reason": reason, "log": ended.log}
    if ended.signal is not None:
        memory = "; the system does so when memory runs out" if ended.signal == "SIGKILL" else ""
        reason = f"the process was killed by {ended.signal}{finished}{memory}"
        return fields | {"status": "crashed", "reason": reason, "log": ended.log}
    if ended.code != 0 or not outcome:
        last = f": {ended.last_line}" if ended.last_line else ""
        reason = f"the process ended with exit code {ended.code}{finished}{last}"
        if ended.code == 0:
            reason = "the process ended without a result: something in it called exit(0)"
        return fields | {"status": "error", "reason": reason, "log": ended.log}
    fields |= outcome
    parity = (outcome.get("result") or {}).get("parity", {})
    if parity.get("verdict") == "fail":
        fields |= {"status": "parity-failed", "reason": parity["summary"]}
    if fields["status"] in ("crashed", "error"):
        fields["log"] = ended.log
    return fields
