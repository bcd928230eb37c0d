"""Running a matrix: models made ready, then for each workload its reference and its cells, one process at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isorun.errors import IsorunError
from isorun.models import hub
from isorun.system.cache import Cache
from isorun_matrix.execution import environments as isolated
from isorun_matrix.execution.job_process import launch
from isorun_matrix.execution.job_status import conclude
from isorun_matrix.execution.plan import Cell, Plan, Preparation, Workload, key, plan
from isorun_matrix.execution.progress import Lines
from isorun_matrix.measurement import machine as environment
from isorun_matrix.results.folder import Kind, RunFolder, write_json
from isorun_matrix.results.layout import JOB, OUTCOME
from isorun_matrix.spec.spec import Spec


def run(spec: Spec, source: Path, folder: RunFolder, watcher: Lines, *, resume: bool) -> dict[str, Any]:
    """Run every cell of a spec that has no result yet.

    Args:
        spec: what to compare.
        source: the file that it was read from.
        folder: where results go, each as its cell ends.
        watcher: told what happens.
        resume: whether to keep the results in the folder that the same spec, models and versions gave.

    Returns:
        The run's document (:meth:`isorun_matrix.results.folder.RunFolder.document`).

    Raises:
        SpecError: the folder cannot be used.
        KeyboardInterrupt: the cell that ran is lost, all before it are kept.
    """
    with folder.writing(resume=resume):
        return _Run(spec, source, folder, watcher, isolated.make(spec, watcher)).go()


@dataclass(frozen=True)
class _Failure:
    """Why what others need could not be had."""

    reason: str


_NAMED = ("id", "model", "shape", "backend", "environment", "label", "precision")
_FOUND = (  # out by running it: what a cell does not have is null
    *("parity", "latency_ms", "device_ms", "spread_ms", "throughput", "load_ms", "first_run_ms", "warmup_runs"),
    *("memory_mib", "provenance", "reason", "remedy", "log", "notes", "started", "wall_s", "load_average", "waited"),
    "kept",
)


class _Run:
    def __init__(
        self, spec: Spec, source: Path, folder: RunFolder, watcher: Lines, found: Mapping[str, isolated.Isolated]
    ) -> None:
        self._spec = spec
        self._source = source
        self._folder = folder
        self._watcher = watcher
        self._isolated = found
        self._plan: Plan = plan(spec, (dialects for each in found.values() for dialects in each.dialects))
        self._environment = {
            **environment.collect(spec.backends_here),
            "environments": {name: each.about for name, each in found.items()},
        }
        self._models: dict[str, dict[str, Any] | _Failure] = {}
        self._keys: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        self._kept: dict[str, _Failure] = {}

    def go(self) -> dict[str, Any]:
        self._require_own()
        if not self._folder.has_run():  # else the run that is there is shown until this one knows its keys
            self._describe()
        for preparation in self._plan.preparations:
            self._watcher.working(f"Preparing {preparation.id}")
            self._models[preparation.id] = self._prepare(preparation)
        for workload in self._plan.workloads:
            self._name(workload, workload.backend)
        for cell in self._plan.cells:
            self._name(cell, cell.backend if cell.environment is None else None)
        measured = {cell.id for cell in self._plan.cells if self._folder.measured("cells", cell.id)}
        kept = {cell.id for cell in self._plan.cells if self._current(cell)}
        self._describe()
        for failure, count in Counter(self._kept.values()).items():
            self._watcher.say(f"{count} measured cells are kept, and cannot be checked: {failure.reason}")
        if stale := len(measured) - len(kept):
            self._watcher.say(
                f"{stale} of {len(self._plan.cells)} cells were measured otherwise (another spec, model, version or "
                "processor), and are measured again"
            )
        with self._watcher.measuring(len(self._plan.cells), len(kept)):
            for workload in self._plan.workloads:
                cells = [cell for cell in self._plan.cells if cell.workload == workload.id and cell.id not in kept]
                if cells:
                    self._work(workload, cells)
        return self._folder.document()

    def _require_own(self) -> None:
        """Check all folders that may be replaced before anything runs, which can take hours."""
        jobs: dict[Kind, Sequence[Preparation | Workload | Cell]] = {
            "models": self._plan.preparations,
            "references": self._plan.workloads,
            "cells": self._plan.cells,
        }
        for kind, planned in jobs.items():
            for job in planned:
                self._folder.require_own(kind, job.id)

    def _name(self, job: Workload | Cell, backend: str | None) -> None:
        """Find a job's key, and the part of it that is known without its model and environment.

        Args:
            job: the job.
            backend: the one that it runs here. The versions of others decide nothing, so that one which is added to a
                spec leaves the results of the rest.
        """
        model = self._models[job.model]
        fingerprint = None if isinstance(model, _Failure) else model["fingerprint"]
        others = {*self._spec.backends_here} - {backend}
        common = {
            "packages": {name: found for name, found in self._environment["packages"].items() if name not in others},
            "python": self._environment["python"],
            "cpu": self._environment["cpu"]["model"],
        }
        if isinstance(job, Workload):
            request = {"source": next(key(each) for each in self._plan.preparations if each.id == job.model)}
            more: dict[str, Any] = {}
        else:
            request = {"workload": self._requests[job.workload]}
            more = {"workload": self._keys[job.workload]}
            if job.environment is not None:
                more["environment"] = self._isolated[job.environment].about
        self._requests[job.id] = key(job, **common, **request)
        self._keys[job.id] = key(job, fingerprint=fingerprint, **common, **more)

    def _current(self, cell: Cell) -> bool:
        """Whether a cell has the result that a run would give, as far as can be known.

        Without its model or environment, the result of the same request is kept under the key that it has.
        """
        found = self._folder.measured("cells", cell.id)
        if found is None:
            return False
        model = self._models[cell.model]
        failure = model if isinstance(model, _Failure) else self._lacking(cell)
        if failure is not None and found.get("request") == self._requests[cell.id]:
            self._keys[cell.id] = found["key"]
            self._kept[cell.id] = failure
            return True
        return bool(found["key"] == self._keys[cell.id])

    def _describe(self) -> None:
        self._folder.write_run(
            {
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "spec_file": str(self._source),
                "spec": self._spec.model_dump(mode="json"),
                "environment": self._environment,
                "cells": [
                    {"key": self._keys.get(cell.id), **_shown(cell), "kept": self._why_kept(cell)}
                    for cell in self._plan.cells
                ],
            }
        )

    def _why_kept(self, cell: Cell) -> str | None:
        return self._kept[cell.id].reason if cell.id in self._kept else None

    def _prepare(self, preparation: Preparation) -> dict[str, Any] | _Failure:
        job = asdict(preparation)
        if preparation.checkpoint is not None:
            try:
                with self._watcher.fetching() as progress:
                    job["checkpoint"] = str(hub.checkpoint_folder(preparation.checkpoint, Cache(), progress))
            except IsorunError as error:
                return _Failure(f"model {preparation.id!r} could not be fetched: {error}")
        result = self._do("isorun_matrix.execution.prepare_model", "models", preparation.id, key(preparation), job)
        if result["status"] != "ok":
            return _Failure(f"model {preparation.id!r} could not be prepared: {result['reason']}")
        return result

    def _work(self, workload: Workload, cells: list[Cell]) -> None:
        """The reference of a workload, unless it is there, and the cells that wait for it."""
        model = self._models[workload.model]
        reference = model if isinstance(model, _Failure) else self._reference(workload, model)
        for cell in cells:
            if isinstance(reference, _Failure):
                self._watcher.finished(self._skip(cell, reference))
            elif failure := self._lacking(cell):
                self._watcher.finished(self._skip(cell, failure))
            else:
                self._watcher.running(cell.id)
                self._watcher.finished(self._cell(cell, reference))

    def _lacking(self, cell: Cell) -> _Failure | None:
        """Why the environment that a cell is to run in cannot be had, if it cannot."""
        reason = None if cell.environment is None else self._isolated[cell.environment].failure
        return None if reason is None else _Failure(reason)

    def _skip(self, cell: Cell, failure: _Failure) -> dict[str, Any]:
        self._folder.start()
        result = self._described(cell) | {"status": "skipped", "reason": failure.reason}
        return self._folder.write("cells", cell.id, self._keys[cell.id], result)

    def _described(self, cell: Cell) -> dict[str, Any]:
        return _shown(cell) | {"request": self._requests[cell.id]}

    def _cell(self, cell: Cell, reference: Mapping[str, Any]) -> dict[str, Any]:
        job = asdict(cell) | {
            "reference": reference,
            "references": str(self._folder.folder("references", cell.workload)),
        }
        return self._do(
            "isorun_matrix.execution.measure_cell", "cells", cell.id, self._keys[cell.id], job, self._described(cell)
        )

    def _reference(self, workload: Workload, model: Mapping[str, Any]) -> dict[str, Any] | _Failure:
        found = self._folder.result("references", workload.id, self._keys[workload.id])
        if found is None or found["status"] != "ok":
            self._watcher.working(f"Computing the reference of {workload.id}")
            job = asdict(workload) | {name: model[name] for name in ("path", "origin", "outputs")}
            found = self._do(
                "isorun_matrix.execution.compute_reference", "references", workload.id, self._keys[workload.id], job
            )
        if found["status"] != "ok":
            return _Failure(f"the reference of {workload.id} could not be computed: {found['reason']}")
        return found

    def _do(
        self,
        module: str,
        kind: Kind,
        name: str,
        key: str,
        job: Mapping[str, Any],
        shown: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run a job in a process of its own and keep what became of it."""
        folder = self._folder.start()
        write_json(folder / JOB, job)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        ended = launch(module, folder, job["time_limit"])
        outcome = conclude(ended, folder, job["time_limit"])
        (folder / OUTCOME).unlink(missing_ok=True)
        return self._folder.write(kind, name, key, {**(shown or {}), "started": started, **outcome})


def _shown(cell: Cell) -> dict[str, Any]:
    """What a result says of the cell that was planned; what was measured is added to it."""
    return {
        **{name: getattr(cell, name) for name in _NAMED},
        "batch": cell.batch,
        "sequence": cell.sequence,
        "options": dict(cell.options),
        "threads": cell.threads,
        "status": "pending",
        **dict.fromkeys(_FOUND),
    }
