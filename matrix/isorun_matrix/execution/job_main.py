"""What every child process does: read its job, die with its parent, hand back an outcome.

An error that isorun knows becomes the outcome. Any other leaves a traceback in the log and an exit code, as a
crash would: the parent tells what happened from those (:mod:`isorun_matrix.execution.job_status`).
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isorun.errors import BackendUnavailable, IsorunError, UnsupportedModel, WorkerDied
from isorun.system.cache import write_atomically
from isorun_matrix.results.layout import JOB, OUTCOME

_PR_SET_PDEATHSIG = 1


def main(work: Callable[[dict[str, Any], Path], dict[str, Any]]) -> None:
    """Do a job: the command line of a child, which is the job's folder, the parent's process id, and when the
    parent began to count (``time.monotonic``).

    Args:
        work: takes the job and its folder; returns plain data.
    """
    folder, parent, started = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    _die_with(parent)
    job = json.loads((folder / JOB).read_text())
    # Counted from when the parent began to count, so that the stack is in the log before the end comes.
    faulthandler.dump_traceback_later(max(0.01, started + job["time_limit"] - time.monotonic()))
    try:
        outcome = {"status": "ok", **work(job, folder)}
    except BackendUnavailable as error:
        outcome = {"status": "unavailable", "reason": error.reason, "remedy": error.remedy}
    except UnsupportedModel as error:
        outcome = {"status": "unsupported", "reason": str(error)}
    except WorkerDied as error:
        print(error.log, flush=True)  # this process's log is the one that is kept
        outcome = {"status": "crashed" if error.signal else "error", "reason": error.how}
    except IsorunError as error:
        outcome = {"status": "error", "reason": str(error)}
    write_atomically(folder / OUTCOME, json.dumps(outcome, allow_nan=False).encode())


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it could be watched
        sys.exit("the process that asked for this job is gone")
