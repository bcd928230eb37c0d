"""A job that pauses before each of its turns; in a process, as those of the matrix."""

import os
import signal
import time
from dataclasses import dataclass

from isorun_matrix.execution.processes import main
from isorun_matrix.execution.processes.main import Paused


@dataclass(frozen=True)
class Job:
    turns: int
    seconds: float
    fails_in: int


@dataclass(frozen=True)
class Outcome:
    pid: int


def work(job, folder, pause):
    for turn in range(job.turns):
        pause(Paused(job.turns - turn, 1.0, on_cpu=True))
        if turn == job.fails_in:
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(job.seconds)
    return Outcome(os.getpid())


if __name__ == "__main__":
    main.main(Job, work)
