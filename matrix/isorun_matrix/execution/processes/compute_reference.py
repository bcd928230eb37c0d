"""Compute the references of a model's workloads in one session: their feeds, and the outputs that cells are compared
with, kept as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from isorun import Session
from isorun.errors import UnsupportedModel
from isorun_matrix.execution.processes import main
from isorun_matrix.execution.processes.main import Paused
from isorun_matrix.execution.processes.session import named
from isorun_matrix.jobs import Reference, ReferenceJob, from_json
from isorun_matrix.measurement import feeds, search
from isorun_matrix.results.layout import FEEDS, JOB, REFERENCE_OUTPUTS, SEARCH


def references(job: ReferenceJob, folder: Path, pause: Callable[[Paused], None]) -> Reference:
    """Compute a reference, and those of other jobs before it. Pauses before each set of feeds, for the progress."""
    model, workload = job.model, job.workload
    with Session(model.path, workload.backend, precision=workload.precision, outputs=model.outputs) as session:
        for place in map(Path, job.others):
            sibling = from_json(ReferenceJob, json.loads((place / JOB).read_text(encoding="utf-8"))["job"])
            main.write_outcome(place, partial(_reference, session, sibling, place, pause))
        return _reference(session, job, folder, pause)


def _reference(session: Session, job: ReferenceJob, folder: Path, pause: Callable[[Paused], None]) -> Reference:
    """Compute a reference, and write its arrays into ``folder``."""
    info, workload = session.model_info, job.workload
    cases, notes = feeds.make(workload, job.model.origin, info)
    for spec in session.get_outputs():
        if spec.dtype is None:
            raise UnsupportedModel(f"Output {spec.name!r} is {spec.type}; only numeric tensors can be compared")
    outputs = {}
    for done, (case, arrays) in enumerate(cases.items()):
        pause(Paused(len(cases) - done, 0.0, on_cpu=True))
        outputs[case] = named(session, session.run(None, arrays))
    varied = feeds.varied(workload, info, next(iter(cases.values())))
    feeds.save(folder / FEEDS, {**cases, **varied})
    feeds.save(folder / REFERENCE_OUTPUTS, outputs)
    neighbours = search.reference(workload, job.model, info, folder / SEARCH, notes)
    return Reference(
        cases=list(cases),
        tokens={case: feeds.tokens(arrays, workload, info) for case, arrays in cases.items()},
        mask=info.mask,
        marks_padding=info.marks_padding,
        token_level=None if info.token_outputs is None else sorted(info.token_outputs),
        notes=notes,
        provenance=session.provenance.as_dict(),
        neighbours=neighbours,
    )


if __name__ == "__main__":
    main.main(ReferenceJob, references)
