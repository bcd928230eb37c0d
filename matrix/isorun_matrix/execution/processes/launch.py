"""Run a job in a process of its own. Its status tells how the process ended, and what outcome it wrote."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isorun.system import subprocesses
from isorun.system.subprocesses import Exit
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.layout import LOG, OUTCOME

_GRACE_SECONDS = 1.0  # for a process to write its stack when its time is up


def run_job(results: RunFolder, module: str, job: Mapping[str, Any], time_limit: float) -> dict[str, Any]:
    """Run a job.

    Args:
        results: receives the folder of the job.
        module: of this package, whose main function does the job (:mod:`isorun_matrix.execution.processes.main`).
        job: a dataclass of :mod:`isorun_matrix.jobs`, as plain data.
        time_limit: in seconds.

    Returns:
        The members of :class:`isorun_matrix.results.records.JobResult` from ``started`` to ``result``.
    """
    folder = results.start({"time_limit": time_limit, "job": job})
    started = now()
    command = subprocesses.python_module(
        f"isorun_matrix.execution.processes.{module}", str(folder), str(time.monotonic())
    )
    ended = subprocesses.run(command, timeout=time_limit + _GRACE_SECONDS, log=folder / LOG)
    found = status(ended, folder, time_limit)
    (folder / OUTCOME).unlink(missing_ok=True)
    return {"started": started, **found}


def now() -> str:
    """The time in UTC, to the second, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def status(ended: Exit, folder: Path, time_limit: float) -> dict[str, Any]:
    """The status of a job that has ended.

    Args:
        ended: how the process ended.
        folder: of the job.
        time_limit: of the job, in seconds.

    Returns:
        The members of :class:`isorun_matrix.results.records.JobResult` from ``status`` to ``result``. ``log`` is given
        only where it says more than the reason.
    """
    path = folder / OUTCOME
    outcome: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    finished = " after the work was finished" if outcome else ""
    found: dict[str, Any] = {"wall_s": ended.seconds, "result": None, "log": None}
    if ended.timeout is not None:
        reason = f"stopped at its time limit of {time_limit:g} s{finished}; the log ends with its stack"
        return found | {"status": "timeout", "reason": reason, "log": ended.log}
    if ended.signal is not None:
        memory = "; the system does so when memory runs out" if ended.signal == "SIGKILL" else ""
        reason = f"the process was killed by {ended.signal}{finished}{memory}"
        return found | {"status": "crashed", "reason": reason, "log": ended.log}
    if ended.code != 0 or not outcome:
        last = f": {ended.last_line}" if ended.last_line else ""
        reason = f"the process ended with exit code {ended.code}{finished}{last}"
        if ended.code == 0:
            reason = "the process ended without a result: something in it called exit(0)"
        return found | {"status": "error", "reason": reason, "log": ended.log}
    found |= outcome
    parity = (outcome.get("result") or {}).get("parity", {})
    if parity.get("verdict") == "fail":
        found |= {"status": "parity-failed", "reason": parity["summary"]}
    if found["status"] in ("crashed", "error"):
        found["log"] = ended.log
    return found
