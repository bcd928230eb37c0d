"""The status of a job, derived from how its process ended and from the outcome that it wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isorun.system.subprocesses import Exit
from isorun_matrix.results.layout import OUTCOME


def job_status(ended: Exit, folder: Path, time_limit: float) -> dict[str, Any]:
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
    status: dict[str, Any] = {"wall_s": ended.seconds, "result": None, "log": None}
    if ended.timeout is not None:
        reason = f"stopped at its time limit of {time_limit:g} s{finished}; the log ends with its stack"
        return status | {"status": "timeout", "reason": reason, "log": ended.log}
    if ended.signal is not None:
        memory = "; the system does so when memory runs out" if ended.signal == "SIGKILL" else ""
        reason = f"the process was killed by {ended.signal}{finished}{memory}"
        return status | {"status": "crashed", "reason": reason, "log": ended.log}
    if ended.code != 0 or not outcome:
        last = f": {ended.last_line}" if ended.last_line else ""
        reason = f"the process ended with exit code {ended.code}{finished}{last}"
        if ended.code == 0:
            reason = "the process ended without a result: something in it called exit(0)"
        return status | {"status": "error", "reason": reason, "log": ended.log}
    status |= outcome
    parity = (outcome.get("result") or {}).get("parity", {})
    if parity.get("verdict") == "fail":
        status |= {"status": "parity-failed", "reason": parity["summary"]}
    if status["status"] in ("crashed", "error"):
        status["log"] = ended.log
    return status
