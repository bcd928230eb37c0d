"""Whether a stored run supports what its reports say (``isorun matrix check``).

The checks follow MLPerf's compliance tests: outputs of the timed runs are compared with the reference (TEST01),
repeated feeds are not faster than varied ones (TEST04), and each round has another seed (TEST05). A spec may set the
seed of the feeds, as runs on several machines do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np

from isorun.system.cache import sha256
from isorun_matrix.measurement import machine
from isorun_matrix.measurement.statistics import latencies
from isorun_matrix.measurement.statistics.verdicts import NEEDED
from isorun_matrix.measurement.timing import kept_runs
from isorun_matrix.results import reader
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.layout import RESULT, RUN, SAMPLES
from isorun_matrix.results.records import LACKING, MEASURED, JobResult, PlannedCell, RoundResult, RunRecord

Problem = tuple[str, str]


def problems(folder: RunFolder) -> Iterator[Problem]:
    """What is wrong with a run: where, and what. Raises ``SpecError`` if a file is missing or damaged, or of another
    schema."""
    record = folder.record()
    for place in folder.jobs():
        for file, problem in _changes(folder.path / place, RUN if place == "." else RESULT):
            yield str(Path(place, file)), problem
    for planned in record.cells:
        for problem in _cell_problems(folder, record, planned):
            yield planned.id, problem


def _cell_problems(folder: RunFolder, record: RunRecord, planned: PlannedCell) -> Iterator[str]:
    cell = folder.cell_of_run(planned.id)
    # A control has no rounds of its own where a changed spec has another first cell, and all cells are measured.
    lacks = planned.control and cell.status == "pending"
    if (cell.status not in ("ok", *LACKING) or cell.kept) and not lacks:
        yield f"is {cell.status}: {cell.reason or cell.kept or 'not measured'}"
    loads = {load.name: load for load in cell.loads}
    for scenario in record.spec.load if cell.status == "ok" and not planned.control else ():
        if (load := loads.get(scenario["name"])) is None or load.status != "ok":
            yield f"load {scenario['name']} is {f'{load.status}: {load.reason}' if load else 'not measured'}"
    if planned.key is None:
        return
    rounds = folder.rounds(planned.id, planned.key)
    calm = sum(result.result is not None and not result.result.disturbed for result in rounds)
    required = max(NEEDED, record.spec.rounds)
    if rounds and calm < required:
        remedy = "Use run --resume" if calm == len(rounds) else "Use run --resume --remeasure disturbed"
        if record.spec.rounds < NEEDED:
            remedy = f"Set rounds to {NEEDED} or more, and run --resume"
        yield f"has {calm} undisturbed round{'' if calm == 1 else 's'}, expected {required}. {remedy}"
    if cell.result is not None and cell.result.cached:
        yield f"takes {cell.result.repeated:.2f} x as long when feeds repeat, as if answers were cached (TEST04)"
    if len({result.seed for result in rounds}) < len(rounds):
        yield "has two rounds with the same seed (TEST05)"
    if rounds and not (folder.trial_folder(planned.id, planned.key) / RESULT).is_file():
        yield "has no trial, which compares its outputs. Run --resume"
    if rounds and folder.reference_of(planned) is None:
        yield "has no reference, with which its outputs were compared"
    for result in rounds:
        for problem in _round_problems(folder, record, planned, result):
            yield f"round {result.round.number}: {problem}"


def _round_problems(folder: RunFolder, record: RunRecord, planned: PlannedCell, result: RoundResult) -> Iterator[str]:
    place = folder.round_folder(planned.id, planned.key or "", result.round.number)
    if result.key != planned.key:
        yield "was measured with settings that differ from those of the run"
    known = [machine.identity(session.environment) for session in record.sessions]
    if result.machine not in known:
        yield "was measured on a machine that no session of the run used"
    if result.status in MEASURED and result.result is not None:
        samples = reader.read_samples(place / SAMPLES)
        expected_figures = latencies.latency(samples)
        figures = [field.name for field in fields(expected_figures) if field.name != "notes"]
        wrong = [name for name in figures if not _equal(result.result.latency_ms, expected_figures, name)]
        if wrong:
            yield f"the latency does not follow from {SAMPLES}: {', '.join(wrong)}"
        count = len(result.result.sampled)
        expected = {f"feeds-{index}": run for index, run in kept_runs(result.seed, len(samples), count).items()}
        if dict(result.result.sampled) != expected:
            yield "the compared outputs are not of the runs that the seed selects (TEST01)"


def _changes(place: Path, record: str) -> Iterator[Problem]:
    """What was changed in a folder after its record was written, which lists the digests of other files."""
    if not reader.is_sealed(place / record):
        yield record, "was changed after isorun wrote it, or is of a version that did not seal it"
    files = reader.read(place / record, JobResult).files if record == RESULT else {}
    for name, digest in files.items():
        if not (place / name).is_file() or sha256((place / name).read_bytes()) != digest:
            yield name, "was changed or removed after isorun wrote it"


def _equal(stored: latencies.Latency, expected: latencies.Latency, name: str) -> bool:
    pair = getattr(stored, name), getattr(expected, name)
    return pair[0] == pair[1] or (None not in pair and bool(np.isclose(*pair, rtol=1e-6)))
