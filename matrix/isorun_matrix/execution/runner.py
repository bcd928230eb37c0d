"""Run a matrix: prepare the models, then for each workload its reference and its cells, one process at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isorun.errors import IsorunError
from isorun.models import hub
from isorun.system.cache import Cache
from isorun_matrix.execution import environments
from isorun_matrix.execution.environments import Available
from isorun_matrix.execution.job_process import launch
from isorun_matrix.execution.job_status import job_status
from isorun_matrix.execution.plan import Plan, key, plan
from isorun_matrix.execution.progress import Lines
from isorun_matrix.jobs import Cell, CellJob, ModelJob, PreparedModel, Reference, ReferenceJob, Workload, from_json
from isorun_matrix.measurement import machine
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.layout import OUTCOME
from isorun_matrix.results.records import (
    CellId,
    CellResult,
    ModelResult,
    PlannedCell,
    RecordedSpec,
    ReferenceResult,
    Run,
    RunRecord,
)
from isorun_matrix.spec.spec import Spec
from isorun_matrix.text import encodable


def run(spec: Spec, source: Path, folder: RunFolder, progress: Lines, *, resume: bool) -> Run:
    """Run every cell of a spec that has no result yet.

    Args:
        spec: what to compare.
        source: the file that it was read from.
        folder: receives each result when its cell ends.
        progress: receives the events.
        resume: whether to keep results in the folder that have the same spec, model and versions.

    Returns:
        The run with all results.

    Raises:
        SpecError: the folder cannot be used.
        KeyboardInterrupt: the current cell is lost, all before it are kept.
    """
    with folder.writing(resume=resume):
        return _Runner(spec, source, folder, progress, environments.make(spec, progress)).run()


@dataclass(frozen=True)
class _Failure:
    """Why something that others need is not available."""

    reason: str


class _Runner:
    def __init__(
        self, spec: Spec, source: Path, folder: RunFolder, progress: Lines, isolated: Mapping[str, Available]
    ) -> None:
        self._spec = spec
        self._source = source
        self._folder = folder
        self._progress = progress
        self._plan: Plan = plan(spec, (dialects for each in isolated.values() for dialects in each.dialects))
        self._environment = machine.collect(
            spec.backends_here, {name: available.record for name, available in isolated.items()}
        )
        self._models: dict[str, PreparedModel | _Failure] = {}
        self._keys: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        self._kept: dict[str, _Failure] = {}

    def run(self) -> Run:
        self._require_own()
        if not self._folder.has_run():  # else the earlier run is shown until the keys of this one are known
            self._record()
        for job in self._plan.models:
            self._progress.started(f"Preparing {job.id}")
            self._models[job.id] = self._prepare(job)
        for workload in self._plan.workloads:
            self._find_keys(workload, workload.backend)
        for cell in self._plan.cells:
            self._find_keys(cell, cell.backend if cell.environment is None else None)
        measured = {cell.id for cell in self._plan.cells if self._folder.measured(CellResult, cell.id)}
        kept = {cell.id for cell in self._plan.cells if self._is_current(cell)}
        self._record()
        total = len(self._plan.cells)
        for failure, count in Counter(self._kept.values()).items():
            self._progress.note(f"{count} measured cells are kept without a check: {failure.reason}")
        if outdated := len(measured) - len(kept):
            self._progress.note(
                f"{outdated} of {total} cells were measured with another spec, model, version or processor, and are "
                "measured again"
            )
        with self._progress.measuring(total, len(kept)):
            for workload in self._plan.workloads:
                cells = [cell for cell in self._plan.cells if cell.workload == workload.id and cell.id not in kept]
                if cells:
                    self._measure_all(workload, cells)
        return self._folder.run()

    def _require_own(self) -> None:
        """Check all folders that may be replaced before anything runs, which can take hours."""
        for job in self._plan.models:
            self._folder.require_own("models", job.id)
        for workload in self._plan.workloads:
            self._folder.require_own("references", workload.id)
        for cell in self._plan.cells:
            self._folder.require_own("cells", cell.id)

    def _find_keys(self, job: Workload | Cell, backend: str | None) -> None:
        """Find a job's key, and the part of it that is known without its model and environment.

        Args:
            job: the job.
            backend: the one that it runs in this environment. Versions of other backends are left out, so that adding
                a backend to a spec keeps the results of the others.
        """
        model = self._models[job.model]
        fingerprint = None if isinstance(model, _Failure) else model.fingerprint
        others = {*self._spec.backends_here} - {backend}
        packages = self._environment.packages
        common = {
            "packages": {name: version for name, version in packages.items() if name not in others},
            "python": self._environment.python,
            "cpu": self._environment.cpu.model,
        }
        more: dict[str, Any] = {}
        if isinstance(job, Workload):
            request = {"source": next(key(source) for source in self._plan.models if source.id == job.model)}
        else:
            request = {"workload": self._requests[job.workload]}
            more["workload"] = self._keys[job.workload]
            if job.environment is not None:
                more["environment"] = asdict(self._environment.environments[job.environment])
        self._requests[job.id] = key(job, **common, **request)
        self._keys[job.id] = key(job, fingerprint=fingerprint, **common, **more)

    def _is_current(self, cell: Cell) -> bool:
        """Whether a cell has the measurement that a run would give, as far as can be known.

        Without its model or environment, a measurement of the same request is kept under its own key.
        """
        measured = self._folder.measured(CellResult, cell.id)
        if measured is None:
            return False
        model = self._models[cell.model]
        failure = model if isinstance(model, _Failure) else self._environment_failure(cell)
        if failure is not None and measured.key is not None and measured.request == self._requests[cell.id]:
            self._keys[cell.id] = measured.key
            self._kept[cell.id] = failure
            return True
        return measured.key == self._keys[cell.id]

    def _record(self) -> None:
        self._folder.write_run(
            RunRecord(
                created=_now(),
                spec_file=encodable(str(self._source)),
                spec=RecordedSpec.from_plain(self._spec.model_dump(mode="json")),
                environment=self._environment,
                cells=[
                    PlannedCell(
                        **_identity(cell),
                        key=self._keys.get(cell.id),
                        kept=encodable(self._kept[cell.id].reason) if cell.id in self._kept else None,
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
        self._folder.write(job.id, ModelResult.from_plain({"key": key(job), **status}))
        if status["result"] is None:
            return _Failure(f"model {job.id!r} could not be prepared: {status['reason']}")
        return from_json(PreparedModel, status["result"])  # and not the record, which cannot hold every path

    def _measure_all(self, workload: Workload, cells: list[Cell]) -> None:
        """Compute the reference of a workload, unless it exists, and measure the cells that need it."""
        model = self._models[workload.model]
        reference = model if isinstance(model, _Failure) else self._reference(workload, model)
        for cell in cells:
            if isinstance(model, _Failure):
                result = self._skip(cell, model)
            elif isinstance(reference, _Failure):
                result = self._skip(cell, reference)
            elif failure := self._environment_failure(cell):
                result = self._skip(cell, failure)
            else:
                self._progress.started(cell.id, cell=True)
                result = self._measure(cell, model, reference)
            self._progress.finished(result)

    def _skip(self, cell: Cell, failure: _Failure) -> CellResult:
        self._folder.start()
        skipped = {"status": "skipped", "reason": failure.reason}
        return self._folder.write(cell.id, CellResult.from_plain(self._described(cell) | skipped))

    def _environment_failure(self, cell: Cell) -> _Failure | None:
        reason = None if cell.environment is None else self._environment.environments[cell.environment].failure
        return None if reason is None else _Failure(reason)

    def _described(self, cell: Cell) -> dict[str, Any]:
        return _identity(cell) | {"key": self._keys[cell.id], "request": self._requests[cell.id]}

    def _measure(self, cell: Cell, model: PreparedModel, reference: Reference) -> CellResult:
        job = CellJob(cell, model, reference, str(self._folder.folder("references", cell.workload)))
        status = self._do("measure_cell", asdict(job), cell.time_limit)
        return self._folder.write(cell.id, CellResult.from_plain(self._described(cell) | status))

    def _reference(self, workload: Workload, model: PreparedModel) -> Reference | _Failure:
        digest = self._keys[workload.id]
        found = self._folder.result(ReferenceResult, workload.id, digest)
        if found is None or found.result is None:
            self._progress.started(f"Computing the reference of {workload.id}")
            status = self._do("compute_reference", asdict(ReferenceJob(workload, model)), workload.time_limit)
            found = self._folder.write(workload.id, ReferenceResult.from_plain({"key": digest, **status}))
        return found.result or _Failure(f"the reference of {workload.id} could not be computed: {found.reason}")

    def _do(self, module: str, job: Mapping[str, Any], time_limit: float) -> dict[str, Any]:
        """Run a job in a process of its own; returns the members of its result."""
        folder = self._folder.start({"time_limit": time_limit, "job": job})
        started = _now()
        ended = launch(f"isorun_matrix.execution.{module}", folder, time_limit)
        status = job_status(ended, folder, time_limit)
        (folder / OUTCOME).unlink(missing_ok=True)
        return {"started": started, **status}


def _identity(cell: Cell) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in CellId.model_fields}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
