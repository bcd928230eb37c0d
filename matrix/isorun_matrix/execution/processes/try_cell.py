"""Try a cell before anything is measured: open it, run every set of feeds, and compare the outputs.

What is done once for a model and kept in the cache (calibration, engines, compiled kernels) is done here, so that
``load_ms`` and memory of the measured processes mean the same for every cell. A cell that cannot run fails here.
"""

from __future__ import annotations

from pathlib import Path

from isorun_matrix.execution.processes import main
from isorun_matrix.execution.processes.session import named, open_session, require_precision
from isorun_matrix.jobs import CellJob
from isorun_matrix.measurement import feeds, parity, search
from isorun_matrix.measurement.figures import Trial
from isorun_matrix.results.layout import FEEDS, REFERENCE_OUTPUTS, SEARCH


def attempt(job: CellJob, *_: object) -> Trial:
    """Try a cell. Raises ``BackendFailed`` if the runtime failed, or computes in another precision than required."""
    feeds_file, expected = (Path(job.reference_folder) / name for name in (FEEDS, REFERENCE_OUTPUTS))
    with open_session(job) as session:
        require_precision(job.cell, session.provenance.precision)
        cases = job.reference.cases
        outputs = ((case, named(session, session.run(None, feeds.load(feeds_file, case)))) for case in cases)
        compared = parity.check(outputs, feeds_file, expected, job.reference, job.cell.tolerance)
        return Trial(compared, search.kept(session, job, Path(job.reference_folder) / SEARCH))


if __name__ == "__main__":
    main.main(CellJob, attempt)
