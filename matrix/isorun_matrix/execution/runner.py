"""Run a matrix: prepare the models; then for each workload compute its reference, try its cells, and measure them in
rounds, one process at a time."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isorun.errors import IsorunError, SpecError
from isorun.models import hub
from isorun.system import subprocesses
from isorun.system.cache import Cache
from isorun_matrix.execution import environments, host_lock, keys, rounds
from isorun_matrix.execution.choice import Choice
from isorun_matrix.execution.environments import Available
from isorun_matrix.execution.job_status import job_status
from isorun_matrix.execution.plan import Plan, key, plan
from isorun_matrix.execution.progress import Lines
from isorun_matrix.jobs import Cell, CellJob, ModelJob, PreparedModel, Reference, ReferenceJob, Workload, from_json
from isorun_matrix.measurement import machine
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.layout import LOG, OUTCOME
from isorun_matrix.results.records import (
    MEASURED,
    CellId,
    LoadResult,
    ModelResult,
    PlannedCell,
    RecordedSpec,
    ReferenceResult,
    RoundResult,
    Run,
    RunRecord,
    RunSession,
    TrialResult,
)
from isorun_matrix.spec.spec import Spec
from isorun_matrix.text import encodable

_GRACE_SECONDS = 1.0  # for a process to write its stack when its time is up


def run(spec: Spec, source: Path, folder: RunFolder, progress: Lines, choice: Choice) -> Run:
    """Run every cell of a spec that lacks rounds.

    Args:
        spec: what to compare.
        source: the file that it was read from.
        folder: receives each result when its process ends.
        progress: receives the events.
        choice: what to do of it.

    Returns:
        The run with all results.

    Raises:
        SpecError: the folder cannot be used.
        KeyboardInterrupt: the current process is lost, all before it are kept.
    """
    with folder.writing(resume=choice.resume), host_lock.held(folder.path, progress.note):
        return _Runner(spec, source, folder, progress, environments.make(spec, progress), choice).run()


def prepare(
    spec: Spec, source: Path, folder: RunFolder, progress: Lines, choice: Choice
) -> tuple[dict[str, PreparedModel], dict[str, str]]:
    """Prepare a run on other machines: fetch or build its models, compute its references, and draw its seed.

    Args:
        spec, source, progress, choice: as for :func:`run`.
        folder: receives them.

    Returns:
        The models by name, and the keys of the references by workload.

    Raises:
        SpecError: the folder cannot be used, or a model or a reference cannot be prepared.
    """
    with folder.writing(resume=choice.resume), host_lock.held(folder.path, progress.note):
        return _Runner(spec, source, folder, progress, {}, choice).prepare()


@dataclass(frozen=True)
class _Failure:
    """Why something that others need is not available."""

    reason: str


class _Runner:
    def __init__(
        self,
        spec: Spec,
        source: Path,
        folder: RunFolder,
        progress: Lines,
        isolated: Mapping[str, Available],
        choice: Choice,
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._progress = progress
        self._choice = choice
        earlier = folder.record() if folder.has_run() else None
        self._environment = machine.collect(
            spec.backends_here, {name: available.record for name, available in isolated.items()}
        )
        self._machine = machine.identity(self._environment)
        session = RunSession(started=_now(), spec_file=encodable(str(source)), environment=self._environment)
        self._sessions = [*([] if earlier is None else earlier.sessions), session]
        self._created = session.started if earlier is None else earlier.created
        origin = earlier if earlier is not None or choice.prepared is None else choice.prepared.record()
        drawn = secrets.randbits(32) if origin is None else origin.seed
        self._seed = drawn if spec.seed is None else spec.seed
        self._plan: Plan = plan(spec, self._seed, {name: each.capabilities for name, each in isolated.items()})
        self._models: dict[str, PreparedModel | _Failure] = {}
        self._keys: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        self._failures: dict[str, _Failure] = {}
        self._repeats: dict[str, int] = {}

    def run(self) -> Run:
        self._require_own()
        if not self._folder.has_run():  # else the earlier run is shown until the keys of this one are known
            self._record()
        for job in self._plan.models:
            self._progress.started(f"Preparing {job.id}")
            self._models[job.id] = self._prepare(job)
        self._find_keys()
        for cell in self._plan.cells:
            self._keep_without_check(cell)
        self._record()
        if self._choice.remeasure_disturbed:
            self._repeats = {workload.id: self._more_repeats(workload) for workload in self._plan.workloads}
        lacking = {workload.id: self._lacking(workload) for workload in self._plan.workloads}
        waiting = [cell for cells in lacking.values() for cell in cells]
        shown = sum(not cell.control for cell in waiting)
        self._announce({cell.id for cell in waiting})
        with self._progress.measuring(len(waiting) * (1 + self._spec.rounds), shown):
            for workload in self._plan.workloads:
                if lacking[workload.id]:
                    self._measure_all(workload, lacking[workload.id])
        for workload in self._plan.workloads:
            self._load_all(workload)
        return self._folder.run()

    def prepare(self) -> tuple[dict[str, PreparedModel], dict[str, str]]:
        """Prepare the models and references for other machines."""
        self._require_own()
        self._record()
        models = {}
        for job in self._plan.models:
            self._progress.started(f"Preparing {job.id}")
            self._models[job.id] = prepared = self._prepare(job)
            if isinstance(prepared, _Failure):
                raise SpecError(prepared.reason)
            models[job.id] = prepared
        self._record()
        self._keys = {name: each.key for name, each in self._workload_keys().items()}
        for workload in self._plan.workloads:
            if isinstance(reference := self._reference(workload, models[workload.model]), _Failure):
                raise SpecError(reference.reason)
        return models, {workload.id: self._keys[workload.id] for workload in self._plan.workloads}

    def _announce(self, lacking: Collection[str]) -> None:
        for failure, count in Counter(self._failures.values()).items():
            self._progress.note(f"{count} cells cannot be measured now: {failure.reason}")
        cells = [cell for cell in self._plan.cells if not cell.control]
        done = [cell for cell in cells if self._folder.rounds(cell.id, self._keys[cell.id]) and cell.id not in lacking]
        if done:
            self._progress.note(f"{len(done)} of {len(cells)} cells are measured and kept")
        outdated = [
            cell
            for cell in cells
            if cell.id in lacking
            and self._folder.is_measured(cell.id)
            and not self._folder.rounds(cell.id, self._keys[cell.id])
        ]
        if outdated:
            self._progress.note(
                f"{len(outdated)} of {len(cells)} cells were measured with another spec, model, version or machine. "
                "They are measured again, and the earlier results stay in the folder"
            )

    def _require_own(self) -> None:
        """Check all folders that may be written to before anything runs, which can take hours."""
        for job in self._plan.models:
            self._folder.require_own(self._folder.model(job.id))
        for cell in self._plan.cells:
            self._folder.require_folder(self._folder.cell(cell.id))

    def _workload_keys(self) -> dict[str, keys.JobKey]:
        found = keys.of_workloads(self._spec, self._plan, self._environment, self._fingerprints())
        if (prepared := self._choice.prepared) is not None:
            for name in found:
                (received,) = prepared.references(name)
                found[name] = replace(found[name], key=received.key or "")
        return found

    def _find_keys(self) -> None:
        found = self._workload_keys()
        found |= keys.of_cells(self._spec, self._plan, self._environment, self._fingerprints(), found)
        self._keys = {name: each.key for name, each in found.items()}
        self._requests = {name: each.request for name, each in found.items()}

    def _fingerprints(self) -> dict[str, str]:
        return {name: model.fingerprint for name, model in self._models.items() if isinstance(model, PreparedModel)}

    def _keep_without_check(self, cell: Cell) -> None:
        """Where the model or the environment of a cell is not available, keep what was measured for the same request,
        under its own key."""
        failure = self._models[cell.model]
        if not isinstance(failure, _Failure):
            reason = None if cell.environment is None else self._environment.environments[cell.environment].failure
            if reason is None:
                return
            failure = _Failure(reason)
        self._failures[cell.id] = failure
        if measured := self._folder.key_of(cell.id, self._requests[cell.id]):
            self._keys[cell.id] = measured

    def _record(self) -> None:
        self._folder.write_run(
            RunRecord(
                created=self._created,
                sessions=self._sessions,
                spec=RecordedSpec.from_plain(self._spec.model_dump(mode="json")),
                seed=self._seed,
                fingerprints=self._fingerprints(),
                cells=[
                    PlannedCell(
                        **_identity(cell),
                        key=self._keys.get(cell.id),
                        failure=encodable(self._failures[cell.id].reason) if cell.id in self._failures else None,
                    )
                    for cell in self._plan.cells
                ],
            )
        )

    def _prepare(self, job: ModelJob) -> PreparedModel | _Failure:
        described = asdict(job)
        if job.checkpoint is not None:
            try:
                with self._progress.fetching() as progress:
                    described["checkpoint"] = str(hub.checkpoint_folder(job.checkpoint, Cache(), progress))
            except IsorunError as error:
                return _Failure(f"model {job.id!r} could not be fetched: {error}")
        status = self._do("prepare_model", described, job.time_limit)
        self._folder.write_model(job.id, ModelResult.from_plain({"key": key(job), **status}))
        if status["result"] is None:
            return _Failure(f"model {job.id!r} could not be prepared: {status['reason']}")
        prepared = from_json(PreparedModel, status["result"])  # and not the record, which cannot hold every path
        required = (self._choice.fingerprints or {}).get(job.id, prepared.fingerprint)
        if prepared.fingerprint != required:
            return _Failure(
                f"model {job.id!r} is not the one of the original run: its fingerprint is {prepared.fingerprint}, not "
                f"{required}. Give the path of the original with --model {job.id}=PATH"
            )
        return prepared

    def _cells(self, workload: Workload) -> list[Cell]:
        """The cells of a workload that may be measured in this session."""
        only = self._choice.only
        return [
            cell
            for cell in self._plan.cells
            if cell.workload == workload.id
            and cell.id not in self._failures
            and (only is None or cell.control or cell.id in only)
        ]

    def _lacking(self, workload: Workload, failed: Collection[str] = ()) -> list[Cell]:
        """The cells that need a trial or a round. A control alone needs neither."""
        cells = [cell for cell in self._cells(workload) if cell.id not in failed]
        results = {cell.id: self._folder.rounds(cell.id, self._keys[cell.id]) for cell in cells}
        names = rounds.lacking(results, self._spec.rounds, self._repeats.get(workload.id, self._spec.repeats))
        found = [cell for cell in cells if cell.id in names]
        return found if any(not cell.control for cell in found) else []

    def _more_repeats(self, workload: Workload) -> int:
        """How many rounds above those that the spec requires, so that each disturbed one is repeated."""
        results = {cell.id: self._folder.rounds(cell.id, self._keys[cell.id]) for cell in self._cells(workload)}
        return self._spec.repeats + rounds.disturbed_rounds(results)

    def _measure_all(self, workload: Workload, cells: Sequence[Cell]) -> None:
        """Compute the reference of a workload, unless it exists, and try and measure the cells that need it."""
        model = self._models[workload.model]
        assert isinstance(model, PreparedModel)
        reference = self._reference(workload, model)
        if isinstance(reference, _Failure):
            self._failures |= dict.fromkeys((cell.id for cell in cells), reference)
            self._record()
            for cell in cells:
                self._finished(cell)
            return
        jobs = {cell.id: (cell, model, reference) for cell in cells}
        failed = {cell.id for cell in cells if not self._try(*jobs[cell.id])}
        finished = set(failed)
        while waiting := self._lacking(workload, failed):
            number = 1 + self._folder.last_round([cell.id for cell in self._plan.cells if cell.workload == workload.id])
            order = rounds.shuffled([cell.id for cell in waiting], self._seed, workload.id, number)
            for position, name in enumerate(order):
                if not self._measure(*jobs[name], {"number": number, "position": position, "order": order}):
                    failed.add(name)
            still = {cell.id for cell in self._lacking(workload, failed)}
            for cell in cells:
                if cell.id not in still | finished:
                    finished.add(cell.id)
                    self._finished(cell)

    def _load_all(self, workload: Workload) -> None:
        """Put every cell with correct outputs under the load of each scenario that it has no result of."""
        model = self._models[workload.model]
        cells = [cell for cell in self._cells(workload) if not cell.control]
        for cell, scenario in itertools.product(cells, self._spec.load if isinstance(model, PreparedModel) else ()):
            described = scenario.model_dump(mode="json")
            earlier = self._folder.load(cell.id, self._keys[cell.id], described)
            if (earlier is not None and earlier.status == "ok") or self._folder.cell_of_run(cell.id).status != "ok":
                continue
            assert isinstance(model, PreparedModel)
            reference = self._reference(workload, model)
            assert isinstance(reference, Reference)  # its cell was measured
            self._progress.started(f"{cell.id}, load {scenario.name}")
            job = self._job(cell, model, reference) | {"load": described}
            status = self._do("load_cell", job, scenario.time_limit)
            record = {"key": self._keys[cell.id], "load": described, **status}
            result = self._folder.write_load(cell.id, LoadResult.from_plain(record))
            if result.result is None:
                self._progress.note(f"{cell.id}, load {scenario.name}: {result.status}: {result.reason}")

    def _finished(self, cell: Cell) -> None:
        if not cell.control:
            self._progress.finished(self._folder.cell_of_run(cell.id))

    def _try(self, cell: Cell, model: PreparedModel, reference: Reference) -> bool:
        """Whether a cell can be measured; it is tried unless it was before."""
        earlier = self._folder.trial(cell.id, self._keys[cell.id])
        if earlier is not None and earlier.status in MEASURED:
            self._progress.ended()
            return True
        self._progress.started(f"{cell.id}, trial", cell=True)
        status = self._do("try_cell", self._job(cell, model, reference), cell.time_limit)
        result = self._folder.write_trial(cell.id, TrialResult.from_plain(self._described(cell) | status))
        self._progress.ended()
        if result.status not in MEASURED:
            self._finished(cell)
        return result.status in MEASURED

    def _measure(self, cell: Cell, model: PreparedModel, reference: Reference, place: Mapping[str, Any]) -> bool:
        """Measure a cell in a round; returns whether it succeeded."""
        self._progress.started(f"{cell.id}, round {place['number']}", cell=True)
        job = self._job(cell, model, reference)
        status = self._do("measure_cell", job, cell.time_limit)
        more = {"round": place, "seed": job["seed"]}
        result = self._folder.write_round(cell.id, RoundResult.from_plain(self._described(cell) | status | more))
        self._progress.ended()
        return result.status in MEASURED

    def _job(self, cell: Cell, model: PreparedModel, reference: Reference) -> dict[str, Any]:
        folder = self._folder.reference(cell.workload, self._keys[cell.workload])
        return asdict(CellJob(cell, model, reference, str(folder), secrets.randbits(32)))

    def _described(self, cell: Cell) -> dict[str, Any]:
        return {"key": self._keys[cell.id], "request": self._requests[cell.id], "machine": self._machine}

    def _reference(self, workload: Workload, model: PreparedModel) -> Reference | _Failure:
        digest = self._keys[workload.id]
        found = self._folder.find_reference(workload.id, digest)
        if found is None and self._choice.prepared is not None:
            received = self._choice.prepared.reference(workload.id, digest)
            place = str(received.relative_to(self._choice.prepared.path))
            self._folder.receive(place, self._choice.prepared.files(place))
            found = self._folder.find_reference(workload.id, digest)
        if found is None or found.result is None:
            self._progress.started(f"Computing the reference of {workload.id}")
            status = self._do("compute_reference", asdict(ReferenceJob(workload, model)), workload.time_limit)
            found = self._folder.write_reference(workload.id, ReferenceResult.from_plain({"key": digest, **status}))
        return found.result or _Failure(f"the reference of {workload.id} could not be computed: {found.reason}")

    def _do(self, module: str, job: Mapping[str, Any], time_limit: float) -> dict[str, Any]:
        """Run a job in a process of its own; returns the members of its result."""
        folder = self._folder.start({"time_limit": time_limit, "job": job})
        started = _now()
        command = subprocesses.python_module(f"isorun_matrix.execution.{module}", str(folder), str(time.monotonic()))
        ended = subprocesses.run(command, timeout=time_limit + _GRACE_SECONDS, log=folder / LOG)
        status = job_status(ended, folder, time_limit)
        (folder / OUTCOME).unlink(missing_ok=True)
        return {"started": started, **status}


def _identity(cell: Cell) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in CellId.model_fields}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
