"""The main function of a job's process: read the job, do it, and write its outcome.

An :class:`~isorun.errors.IsorunError` becomes the outcome. Any other exception leaves a traceback in the log and an
exit code, from which the parent derives the status (:mod:`isorun_matrix.execution.processes.launch`).

The parent says when to work, and until when (``time.monotonic``), by a message on a channel. A job may answer
that it pauses; the next message lets it go on.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from isorun.errors import BackendUnavailable, IsorunError, UnsupportedModel, WorkerDied
from isorun.system.cache import write_atomically
from isorun.system.channels import Parent
from isorun_matrix.jobs import from_json
from isorun_matrix.results.layout import JOB, OUTCOME

Job = TypeVar("Job")


@dataclass(frozen=True)
class Paused:
    """What a process reports when it pauses.

    Attributes:
        turns: in how many more turns it measures; 0 if only the rest of its work is left.
        resident_mib: its memory in RAM, where that is known.
        on_cpu: whether it computes on the CPU.
    """

    turns: int
    resident_mib: float | None
    on_cpu: bool


def main(kind: type[Job], work: Callable[[Job, Path, Callable[[Paused], None]], Any]) -> None:
    """Do the job in a folder, which the command line names.

    Args:
        kind: the dataclass of the job.
        work: called with the job, its folder, and a function that pauses: it returns when the parent lets it go on.
            Returns a dataclass that JSON can hold.
    """
    folder = Path(sys.argv[1])
    parent = Parent()

    def proceed() -> None:
        limit = float(parent.receive() or sys.exit("the parent process is gone"))
        # The stack is in the log before the parent kills this process.
        faulthandler.dump_traceback_later(max(0.01, limit - time.monotonic()))

    def pause(state: Paused) -> None:
        faulthandler.cancel_dump_traceback_later()
        parent.send(json.dumps(asdict(state)))
        proceed()

    proceed()
    job = from_json(kind, json.loads((folder / JOB).read_text(encoding="utf-8"))["job"])
    write_outcome(folder, lambda: work(job, folder, pause))


def write_outcome(folder: Path, work: Callable[[], Any]) -> None:
    """Do some work, and write its outcome into a folder."""
    outcome: dict[str, Any]
    try:
        outcome = {"status": "ok", "result": asdict(work())}
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
