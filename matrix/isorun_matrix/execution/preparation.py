"""What cells need before they are measured: models, references and keys; and the record of the run that lists them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from isorun.cli import console
from isorun.errors import IsorunError, SpecError
from isorun.models import hub
from isorun.system import json_files
from isorun.system.cache import Cache
from isorun.types import Capabilities
from isorun_matrix.execution.plan import Choice, Plan, find_keys, key, plan
from isorun_matrix.execution.processes.launch import now, run_job
from isorun_matrix.execution.progress import Lines
from isorun_matrix.jobs import Cell, ModelJob, PreparedModel, Reference, ReferenceJob, Workload, from_json
from isorun_matrix.measurement import machine
from isorun_matrix.measurement.machine import IsolatedEnvironment
from isorun_matrix.report.formatting import shortened
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.layout import OUTCOME
from isorun_matrix.results.records import (
    ModelResult,
    PlannedCell,
    RecordedSpec,
    ReferenceResult,
    RunRecord,
    RunSession,
)
from isorun_matrix.spec.spec import Spec
from isorun_matrix.text import encodable

REFERENCE_SECONDS = 10.0
"""About how long a reference takes on a quick machine."""


class Preparation:
    """Prepares a run in its folder.

    Args:
        spec, source, folder, progress, choice: as for :func:`isorun_matrix.execution.runner.run`.
        records, offers: of the isolated environments, as :func:`isorun_matrix.execution.environments.make` returns.

    Attributes:
        plan: the models, workloads and cells.
        seed: of the run, from its spec or drawn at random.
        machine: the identity of this machine.
        models: by name, once they are prepared; of one that is not available, why.
        keys: of workloads and cells by id: what their results depend on.
        requests: as the keys, without what only the prepared model tells.
        failures: why cells cannot be measured in this session, by id.
        wanted: the workloads whose references will be needed, by id.
    """

    def __init__(
        self,
        spec: Spec,
        source: Path,
        folder: RunFolder,
        progress: Lines,
        choice: Choice,
        records: Mapping[str, IsolatedEnvironment],
        offers: Mapping[str, Mapping[str, Capabilities]],
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._progress = progress
        self._choice = choice
        earlier = folder.record() if folder.has_run() else None
        self._environment = machine.collect(spec.backends_here, records)
        self.machine = machine.identity(self._environment)
        session = RunSession(started=now(), spec_file=encodable(str(source)), environment=self._environment)
        self._sessions = [*([] if earlier is None else earlier.sessions), session]
        self._created = session.started if earlier is None else earlier.created
        origin = earlier if earlier is not None or choice.prepared is None else choice.prepared.record()
        drawn = secrets.randbits(32) if origin is None else origin.seed
        self.seed = drawn if spec.seed is None else spec.seed
        self.plan: Plan = plan(spec, self.seed, offers)
        self.models: dict[str, PreparedModel | str] = {}
        self.keys: dict[str, str] = {}
        self.requests: dict[str, str] = {}
        self.failures: dict[str, str] = {}
        self.wanted = {workload.id for workload in self.plan.workloads}

    def run(self) -> None:
        """Prepare the models, find the keys, and write the record."""
        self._prepare_models()
        self._find_keys(self.plan)
        for cell in self.plan.cells:
            self._keep_without_check(cell)
        self.record()

    def for_machines(self) -> tuple[dict[str, PreparedModel], dict[str, str]]:
        """Fetch or build the models, and compute the references, of a run on other machines.

        Returns the models by name, and the keys of the references by workload; raises ``SpecError`` if one cannot be
        prepared."""
        self._prepare_models()
        models = {name: model for name, model in self.models.items() if isinstance(model, PreparedModel)}
        if failure := next((model for model in self.models.values() if isinstance(model, str)), None):
            raise SpecError(failure)
        self.record()
        self._find_keys(replace(self.plan, cells=()))  # those of cells are of the machines
        for workload in self.plan.workloads:
            if isinstance(reference := self.reference(workload, models[workload.model]), str):
                raise SpecError(reference)
        return models, {workload.id: self.keys[workload.id] for workload in self.plan.workloads}

    def record(self) -> None:
        """Write the record of the run as it stands now."""
        self._folder.write_run(
            RunRecord(
                created=self._created,
                sessions=self._sessions,
                spec=RecordedSpec.from_plain(self._spec.model_dump(mode="json")),
                seed=self.seed,
                fingerprints=self._fingerprints(),
                cells=[
                    PlannedCell(
                        **cell.identity,
                        key=self.keys.get(cell.id),
                        failure=encodable(self.failures[cell.id]) if cell.id in self.failures else None,
                    )
                    for cell in self.plan.cells
                ],
            )
        )

    def reference(self, workload: Workload, model: PreparedModel) -> Reference | str:
        """The reference of a workload: the one in the folder, else one that is computed now; or why there is none."""
        place, prepared = self._folder.reference(workload.id, self.keys[workload.id]), self._choice.prepared
        if prepared is not None and self._folder.read(place, ReferenceResult) is None:
            received = str(place.relative_to(self._folder.path))
            self._folder.receive(received, prepared.files(received))
        reference = self._folder.read(place, ReferenceResult)
        if reference is None or reference.result is None:
            reference = self._compute(workload, model)
        return reference.result or f"the reference of {workload.id} could not be computed: {reference.reason}"

    def lacks_reference(self, workload: str) -> bool:
        """Whether the reference of a workload must be computed: neither the folder nor a prepared run has it."""
        place = self._folder.reference(workload, self.keys[workload])
        reference = self._folder.read(place, ReferenceResult)
        return self._choice.prepared is None and (reference is None or reference.result is None)

    def _compute(self, workload: Workload, model: PreparedModel) -> ReferenceResult:
        """Compute the reference of a workload, and in the same process those that the model's other shapes lack."""
        others = {
            sibling.id: self._folder.start(
                {"time_limit": sibling.time_limit, "job": asdict(ReferenceJob(sibling, model))},
            )
            for sibling in self.plan.workloads
            if sibling.model == workload.model
            and sibling is not workload
            and sibling.id in self.wanted
            and self._folder.read(self._folder.reference(sibling.id, self.keys[sibling.id]), ReferenceResult) is None
        }
        what = f"Computing the reference of {shortened([workload.id, *others])}"
        self._progress.started(what)
        work, status = run_job(
            self._folder,
            "compute_reference",
            asdict(ReferenceJob(workload, model, [*map(str, others.values())])),
            workload.time_limit * (1 + len(others)),
            lambda left: self._progress.started(f"{what}: {left} sets of feeds left at a shape", part=True),
        )
        self._progress.ended(REFERENCE_SECONDS * (1 + len(others)))
        if status["status"] == "timeout":
            status["reason"] += ". Raise reference.time_limit, or choose a quicker reference.backend"
        for name, place in others.items():
            if (place / OUTCOME).is_file():  # else it is computed again where it is needed
                self._keep(name, place, {"started": status["started"], **json_files.read(place / OUTCOME)})
        return self._keep(workload.id, work, status)

    def _keep(self, workload: str, work: Path, status: Mapping[str, Any]) -> ReferenceResult:
        (work / OUTCOME).unlink(missing_ok=True)
        digest = self.keys[workload]
        record = ReferenceResult.from_plain({"key": digest, **status})
        return self._folder.write(work, self._folder.reference(workload, digest), record)

    def _prepare_models(self) -> None:
        """Prepare the models. All folders that may be written to are checked before anything runs, which can take
        hours."""
        for job in self.plan.models:
            self._folder.require_own(self._folder.model(job.id))
        for cell in self.plan.cells:
            self._folder.require_folder(self._folder.cell(cell.id))
        if not self._folder.has_run():  # else the earlier run is shown until the keys of this one are known
            self.record()
        for job in self.plan.models:
            self._progress.started(f"Preparing {job.id}")
            self.models[job.id] = self._prepare(job)

    def _prepare(self, job: ModelJob) -> PreparedModel | str:
        """The model of a job, or why it is not available."""
        described = asdict(job)
        if job.checkpoint is not None:
            try:
                with console.transfer() as progress:
                    described["checkpoint"] = str(hub.checkpoint_folder(job.checkpoint, Cache(), progress))
            except IsorunError as error:
                return f"model {job.id!r} could not be fetched: {error}"
        work, status = run_job(self._folder, "prepare_model", described, job.time_limit)
        self._folder.write(work, self._folder.model(job.id), ModelResult.from_plain({"key": key(job), **status}))
        if status["result"] is None:
            return f"model {job.id!r} could not be prepared: {status['reason']}"
        prepared = from_json(PreparedModel, status["result"])  # and not the record, which cannot hold every path
        required = (self._choice.fingerprints or {}).get(job.id, prepared.fingerprint)
        if prepared.fingerprint != required:
            return (
                f"model {job.id!r} is not the one of the original run: its fingerprint is {prepared.fingerprint}, not "
                f"{required}. Give the path of the original with --model {job.id}=PATH"
            )
        return prepared

    def _find_keys(self, plan: Plan) -> None:
        """Find the keys of the workloads and cells of a plan."""
        received = {}
        if (prepared := self._choice.prepared) is not None:
            for workload in plan.workloads:
                (reference,) = prepared.references(workload.id)
                received[workload.id] = reference.key or ""
        known = self._fingerprints()
        self.keys, self.requests = find_keys(self._spec, plan, self._environment, known, received)

    def _fingerprints(self) -> dict[str, str]:
        return {name: model.fingerprint for name, model in self.models.items() if isinstance(model, PreparedModel)}

    def _keep_without_check(self, cell: Cell) -> None:
        """Where the model or the environment of a cell is not available, keep what was measured for the same request,
        under its own key."""
        model, failure = self.models[cell.model], None
        if isinstance(model, str):
            failure = model
        elif cell.environment is not None:
            failure = self._environment.environments[cell.environment].failure
        if failure is None:
            return
        self.failures[cell.id] = failure
        if measured := self._folder.key_of(cell.id, self.requests[cell.id]):
            self.keys[cell.id] = measured
