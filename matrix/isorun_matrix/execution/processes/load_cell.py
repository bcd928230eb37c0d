"""Put a cell under load, in a process that does nothing else. LoadGen's logs stay in the folder of the job.

It pauses before each measurement, so that the other cells have theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from isorun.system.process_usage import family
from isorun.tuning.timing import settle
from isorun_matrix.execution.processes import main
from isorun_matrix.execution.processes.main import Paused
from isorun_matrix.execution.processes.session import open_session, resources
from isorun_matrix.jobs import LoadJob
from isorun_matrix.measurement import feeds, timing
from isorun_matrix.measurement.load import scenarios
from isorun_matrix.measurement.load.figures import LoadFigures
from isorun_matrix.measurement.load.targets import target_of
from isorun_matrix.results.layout import FEEDS
from isorun_matrix.spec.load_scenario import Load

_QUEUE = 10_000_000  # the scenario says how many requests wait
_ALONE = 5  # runs that tell how long a request takes on its own


def measure(job: LoadJob, folder: Path, pause: Callable[[Paused], None]) -> LoadFigures:
    """Measure a cell in a scenario."""
    cell, files, scenario = job.cell, Path(job.reference_folder), Load.model_validate(job.load)
    timed = [feeds.load(files / FEEDS, name) for name in feeds.timed(job.reference.cases)]
    with open_session(job, max_queue=_QUEUE) as session:
        timing.warm_up(session, timed, max(1, cell.warmup), cell.seconds)
        alone = timing.TimedRuns(session, timed, job.seed)
        alone.measure(_ALONE)
        target = target_of(session, timed, scenario)
        state, processes = resources(), family()

        def wait(left: int) -> None:
            settle(processes)
            pause(replace(state, turns=left))
            session.run(None, timed[0])  # its memory back into the processor's caches

        try:
            return scenarios.measure(
                scenario,
                target,
                rows=cell.batch,
                sets=len(timed),
                typical=float(np.median(alone.samples)) / 1e9,
                seed=job.seed,
                logs=folder,
                pause=wait,
            )
        finally:
            target.close()


if __name__ == "__main__":
    main.main(LoadJob, measure)
