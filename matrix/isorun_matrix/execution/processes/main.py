"""The main function of a job's process: read the job, do it, and write its outcome.

An :class:`~isorun.errors.IsorunError` becomes the outcome. Any other exception leaves a traceback in the log and an
exit code, from which the parent derives the status (:mod:`isorun_matrix.execution.processes.launch`).
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from isorun.errors import BackendUnavailable, IsorunError, UnsupportedModel, WorkerDied
from isorun.system.cache import write_atomically
from isorun_matrix.jobs import from_json
from isorun_matrix.results.layout import JOB, OUTCOME

Job = TypeVar("Job")


def main(kind: type[Job], work: Callable[[Job, Path], Any]) -> None:
    """Do the job in a folder. The command line is the folder, and when the parent started to count the time limit
    (``time.monotonic``).

    Args:
        kind: the dataclass of the job.
        work: called with the job and its folder; returns a dataclass that JSON can hold.
    """
    folder, started = Path(sys.argv[1]), float(sys.argv[2])
    content = json.loads((folder / JOB).read_text())
    # Counted from the parent's start, so that the stack is in the log before the parent kills this process.
    faulthandler.dump_traceback_later(max(0.01, started + content["time_limit"] - time.monotonic()))
    outcome: dict[str, Any]
    try:
        outcome = {"status": "ok", "result": asdict(work(from_json(kind, content["job"]), folder))}
    except BackendUnavailable as error:
        outcome = {"status": "unavailable", "reason": error.reason, "remedy": error.remedy}
    except UnsupportedModel as error:
        outcome = {"status": "unsupported", "reason": str(error)}
    except WorkerDied as error:
        print(error.log, flush=True)  # only this process's log is kept
        outcome = {"status": "crashed" if error.signal else "error", "reason": error.how}
    except IsorunError as error:
        outcome = {"status": "error", "reason": str(error)}
    write_atomically(folder / OUTCOME, json.dumps(outcome, allow_nan=False).encode())
