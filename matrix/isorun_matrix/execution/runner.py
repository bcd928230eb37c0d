"""Run a matrix: prepare it; then try the cells of each workload and measure them in rounds. One process works at a
time.

Workloads that share rounds are measured together: with ``common_rounds``, those of all models at a shape.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isorun_matrix.execution import environments, host_lock, rounds
from isorun_matrix.execution.plan import Choice
from isorun_matrix.execution.preparation import REFERENCE_SECONDS, Preparation
from isorun_matrix.execution.processes.launch import Process, run_job
from isorun_matrix.execution.processes.take_turns import take_turns
from isorun_matrix.execution.progress import Lines
from isorun_matrix.jobs import CONTROL, Cell, CellJob, PreparedModel, Reference, Workload
from isorun_matrix.report import summary
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.records import MEASURED, LoadResult, RoundResult, Run, TrialResult
from isorun_matrix.spec.load_scenario import TRIALS, Load
from isorun_matrix.spec.spec import Spec


def run(spec: Spec, source: Path, folder: RunFolder, progress: Lines, choice: Choice) -> Run:
    """Run every cell of a spec that lacks rounds, and return the run with all results.

    Args:
        spec: what to compare.
        source: the file that it was read from.
        folder: receives each result when its process ends.
        progress: receives the events.
        choice: what to do of it.

    Raises:
        SpecError: the folder cannot be used.
        KeyboardInterrupt: the current round is lost, all before it are kept.
    """
    with folder.writing(resume=choice.resume), host_lock.held(folder.path, progress.note):
        isolated = environments.make(spec, progress, any_version=choice.any_version)
        prepared = Preparation(spec, source, folder, progress, choice, *isolated)
        return _Runner(spec, folder, progress, prepared, choice).run()


Workloads = tuple[str, ...]
"""The ids of workloads that share rounds."""

_TRIAL_SECONDS = 3.0  # on a quick machine, as below
_START_SECONDS = 2.0

_Job = tuple[Cell, PreparedModel, Reference]


class _Runner:
    def __init__(self, spec: Spec, folder: RunFolder, progress: Lines, prepared: Preparation, choice: Choice) -> None:
        self._spec = spec
        self._folder = folder
        self._progress = progress
        self._prepared = prepared
        self._choice = choice
        self._repeats: dict[Workloads, int] = {}
        self._round_seconds = _START_SECONDS + (spec.time_of_a_cell or 1.0)

    def run(self) -> Run:
        self._prepared.run()
        together = self._together()
        if self._choice.remeasure_disturbed:
            for workloads in together:  # so many more that each disturbed round is repeated
                results = {cell.id: self._rounds(cell) for cell in self._cells(workloads)}
                self._repeats[workloads] = self._spec.repeats + len(rounds.disturbed_rounds(results))
        lacking = {workloads: self._lacking(workloads) for workloads in together}
        waiting = [cell for cells in lacking.values() for cell in cells]
        shown = sum(not cell.control for cell in waiting)
        self._prepared.wanted = {cell.workload for cell in waiting}
        self._announce({cell.id for cell in waiting})
        loads = list(itertools.product(self._prepared.plan.workloads, self._spec.load))
        seconds = sum(map(self._prepared.lacks_reference, self._prepared.wanted)) * REFERENCE_SECONDS
        seconds += len(waiting) * (_TRIAL_SECONDS + self._spec.rounds * self._round_seconds)
        seconds += sum(len(self._unloaded(*load)) * _load_seconds(load[1]) for load in loads)
        with self._progress.measuring(seconds, shown):
            for workloads, cells in lacking.items():
                if cells:
                    self._measure_all(workloads, cells)
            for workload, scenario in loads:
                self._load_all(workload, scenario)
        return self._folder.run()

    def _together(self) -> list[Workloads]:
        groups: dict[str, list[str]] = {}
        for workload in self._prepared.plan.workloads:
            shape = workload.id.removeprefix(f"{workload.model}/")
            groups.setdefault(shape if self._spec.common_rounds else workload.id, []).append(workload.id)
        return [tuple(workloads) for workloads in groups.values()]

    def _announce(self, lacking: Collection[str]) -> None:
        cells = [cell for cell in self._prepared.plan.cells if not cell.control]
        failures = Counter(failure for cell in cells if (failure := self._prepared.failures.get(cell.id)))
        for failure, count in failures.items():
            self._progress.note(f"{count} cell{'' if count == 1 else 's'} cannot be measured now: {failure}")
        done = [cell for cell in cells if self._rounds(cell) and cell.id not in lacking]
        if done:
            self._progress.note(f"{len(done)} of {len(cells)} cells are measured and kept")
        outdated = [
            cell
            for cell in cells
            if cell.id in lacking and self._folder.is_measured(cell.id) and not self._rounds(cell)
        ]
        if outdated:
            self._progress.note(
                f"{len(outdated)} of {len(cells)} cells were measured with another spec, model, version or machine. "
                "They are measured again, and the earlier results stay in the folder"
            )

    def _cells(self, workloads: Workloads) -> list[Cell]:
        """The cells of workloads that may be measured in this session."""
        only = self._choice.only
        return [
            cell
            for cell in self._planned(workloads)
            if cell.id not in self._prepared.failures and (only is None or cell.control or cell.id in only)
        ]

    def _planned(self, workloads: Workloads) -> list[Cell]:
        return [cell for cell in self._prepared.plan.cells if cell.workload in workloads]

    def _rounds(self, cell: Cell) -> Sequence[RoundResult]:
        return self._folder.rounds(cell.id, self._prepared.keys[cell.id])

    def _lacking(self, workloads: Workloads, failed: Collection[str] = ()) -> list[Cell]:
        """The cells that need a trial or a round. A control alone needs neither."""
        cells = [cell for cell in self._cells(workloads) if cell.id not in failed]
        results = {cell.id: self._rounds(cell) for cell in cells}
        names = rounds.lacking(results, self._spec.rounds, self._repeats.get(workloads, self._spec.repeats))
        chosen = [cell for cell in cells if cell.id in names or self._trial(cell) is None]
        return chosen if any(not cell.control for cell in chosen) else []

    def _trial(self, cell: Cell) -> TrialResult | None:
        return self._folder.read(self._folder.trial_folder(cell.id, self._prepared.keys[cell.id]), TrialResult)

    def _measure_all(self, workloads: Workloads, cells: Sequence[Cell]) -> None:
        """Compute the references of workloads, unless they exist, and try and measure the cells that need it."""
        jobs: dict[str, _Job] = {}
        complete = [cell for cell in self._cells(workloads) if cell not in cells]
        is_resumed = any(self._rounds(cell) for cell in (*complete, *cells))
        for workload in self._prepared.plan.workloads:
            own = [cell for cell in (*cells, *complete) if cell.workload == workload.id]
            model = self._prepared.models[workload.model]
            if not own or not isinstance(model, PreparedModel):
                continue
            reference = self._prepared.reference(workload, model)
            if isinstance(reference, str):
                failing = [cell for cell in own if cell in cells]
                self._prepared.failures |= dict.fromkeys((cell.id for cell in failing), reference)
                self._prepared.record()
                for cell in failing:
                    self._finished(cell)
            else:
                jobs |= {cell.id: (cell, model, reference) for cell in own}
        failed = {cell.id for cell in cells if cell.id not in jobs or not self._try(*jobs[cell.id])}
        finished = set(failed)
        planned = len(cells) * self._spec.rounds
        while waiting := self._lacking(workloads, failed):
            number = 1 + self._folder.last_round([cell.id for cell in self._planned(workloads)])
            companions = self._companions(workloads, waiting) if is_resumed else []
            names = {cell.id for cell in (*waiting, *companions)} - failed
            planned -= len(names)
            self._progress.added(max(0, min(len(names), -planned)) * self._round_seconds)
            failed |= self._round(workloads[0], number, {name: jobs[name] for name in jobs if name in names})
            still = {cell.id for cell in self._lacking(workloads, failed)}
            for cell in cells:
                if cell.id not in still | finished:
                    finished.add(cell.id)
                    self._finished(cell)
        self._progress.ended(max(0, planned) * self._round_seconds)  # the rounds of cells that failed

    def _companions(self, workloads: Workloads, lacking: Sequence[Cell]) -> list[Cell]:
        """The complete cells that are measured again beside cells that were added to a run, so that these share rounds
        with them: the fastest, the control and its twin."""
        complete = {cell.id: cell for cell in self._cells(workloads) if cell not in lacking}
        controls = [cell.id for cell in complete.values() if cell.control]
        names = {*controls, *(name.replace(CONTROL, "") for name in controls)}
        groups = summary.groups(self._folder.cell_of_run(name) for name in complete)
        names |= {group.fastest.id for group in groups if group.fastest is not None}
        return [cell for name, cell in complete.items() if name in names]

    def _load_all(self, workload: Workload, scenario: Load) -> None:
        """Put the cells with correct outputs that have no result of a scenario under its load, in turns."""
        model = self._prepared.models[workload.model]
        described = scenario.model_dump(mode="json")
        unloaded = self._unloaded(workload, scenario)
        cells = {cell.id: cell for cell in unloaded if self._folder.cell_of_run(cell.id).status == "ok"}
        self._progress.ended((len(unloaded) - len(cells)) * _load_seconds(scenario))
        if not cells:
            return
        assert isinstance(model, PreparedModel)  # its cells were measured
        reference = self._prepared.reference(workload, model)
        assert isinstance(reference, Reference)

        def start(name: str) -> Process:
            self._progress.started(f"{name}, load {scenario.name}", part=True)
            job = self._job(cells[name], model, reference) | {"load": described}
            return Process(self._folder, "load_cell", job, scenario.time_limit)

        seeds = self._prepared.seed, workload.id, scenario.name
        for name, process in take_turns([*cells], start, lambda names, turn: rounds.shuffled(names, *seeds, turn)):
            record = {"key": self._prepared.keys[name], "load": described, "together": [*cells]}
            record |= process.take_status()
            place = self._folder.load_folder(name, self._prepared.keys[name], described)
            result = self._folder.write(process.folder, place, LoadResult.from_plain(record))
            self._progress.ended(_load_seconds(scenario))
            if result.result is None:
                self._progress.note(f"{name}, load {scenario.name}: {result.status}: {result.reason}")

    def _unloaded(self, workload: Workload, scenario: Load) -> list[Cell]:
        """The cells without a result of a scenario."""
        described, unloaded = scenario.model_dump(mode="json"), []
        for cell in self._cells((workload.id,)):
            place = self._folder.load_folder(cell.id, self._prepared.keys[cell.id], described)
            earlier = self._folder.read(place, LoadResult)
            if not cell.control and (earlier is None or earlier.status != "ok"):
                unloaded.append(cell)
        return unloaded

    def _finished(self, cell: Cell) -> None:
        if not cell.control:
            self._progress.finished(self._folder.cell_of_run(cell.id))

    def _try(self, cell: Cell, model: PreparedModel, reference: Reference) -> bool:
        """Whether a cell can be measured; it is tried unless it was before."""
        earlier = self._trial(cell)
        if earlier is not None and earlier.status in MEASURED:
            self._progress.ended(_TRIAL_SECONDS)
            return True
        self._progress.started(f"{cell.id}, trial", part=True)
        work, status = run_job(self._folder, "try_cell", self._job(cell, model, reference), cell.time_limit)
        place = self._folder.trial_folder(cell.id, self._prepared.keys[cell.id])
        result = self._folder.write(work, place, TrialResult.from_plain(self._described(cell) | status))
        self._progress.ended(_TRIAL_SECONDS)
        if result.status not in MEASURED:
            self._finished(cell)
        return result.status in MEASURED

    def _round(self, workload: str, number: int, jobs: Mapping[str, _Job]) -> set[str]:
        """Measure cells in a round; returns those that failed."""
        seeds = self._prepared.seed, workload, number
        order = rounds.shuffled([*jobs], *seeds)
        plain = {name: self._job(*jobs[name]) for name in order}

        def start(name: str) -> Process:
            self._progress.started(f"{workload}, round {number}: {name}", part=True)
            return Process(self._folder, "measure_cell", plain[name], jobs[name][0].time_limit)

        failed = set()
        for name, process in take_turns(order, start, lambda names, turn: rounds.shuffled(names, *seeds, turn)):
            more = {"round": {"number": number, "position": order.index(name), "order": order}}
            more |= {"seed": plain[name]["seed"]}
            place = self._folder.round_folder(name, self._prepared.keys[name], number)
            record = RoundResult.from_plain(self._described(jobs[name][0]) | process.take_status() | more)
            if self._folder.write(process.folder, place, record).status not in MEASURED:
                failed.add(name)
            self._progress.ended(self._round_seconds)
        return failed

    def _job(self, cell: Cell, model: PreparedModel, reference: Reference) -> dict[str, Any]:
        folder = self._folder.reference(cell.workload, self._prepared.keys[cell.workload])
        return asdict(CellJob(cell, model, reference, str(folder), secrets.randbits(32)))

    def _described(self, cell: Cell) -> dict[str, Any]:
        return {
            "key": self._prepared.keys[cell.id],
            "request": self._prepared.requests[cell.id],
            "machine": self._prepared.machine,
        }


def _load_seconds(scenario: Load) -> float:
    return _START_SECONDS + scenario.seconds * (TRIALS if scenario.scenario == "server" else 1)
