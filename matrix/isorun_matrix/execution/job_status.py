"""What became of a job, told from how its process ended and from what it handed back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isorun_matrix.execution.job_process import Exit
from isorun_matrix.results.layout import OUTCOME


def conclude(ended: Exit, folder: Path, time_limit: float) -> dict[str, Any]:
    """The job's outcome with the status that it deserves.

    Args:
        ended: how the process ended.
        folder: the job's.
        time_limit: what it was given, in seconds.

    Returns:
        What the child handed back, and ``status``, ``reason``, ``remedy`` (``None`` where there is nothing to say),
        ``log`` (the end of its output, where it says more than the reason) and ``wall_s``.
    """
    path = folder / OUTCOME
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    finished = " after it had finished its work" if found else ""
    if ended.timed_out:
        found["status"] = "timeout"
        found["reason"] = f"stopped at its time limit of {time_limit:g} s{finished}; its log says where it was"
    elif ended.signal is not None:
        found["status"] = "crashed"
        memory = "; the system does that when memory runs out" if ended.signal == "SIGKILL" else ""
        found["reason"] = f"the process died of {ended.signal}{finished}{memory}"
    elif ended.code != 0:
        found["status"] = "error"
        said = [line.strip() for line in ended.log.splitlines() if line.strip()]
        last = f": {said[-1]}" if said else ""
        found["reason"] = f"the process ended with exit code {ended.code}{finished}{last}"
    elif not found:
        found["status"] = "error"
        found["reason"] = "the process ended without a result, as if it were done: something in it called exit(0)"
    elif found["status"] == "ok" and found.get("parity", {}).get("verdict") == "fail":
        found["status"] = "parity-failed"
        found["reason"] = found["parity"]["summary"]
    telling = found["status"] in ("crashed", "timeout", "error")
    return {
        "reason": None,
        "remedy": None,
        **found,
        "log": ended.log if telling else None,
        "wall_s": ended.seconds,
    }
