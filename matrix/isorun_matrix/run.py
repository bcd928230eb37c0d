"""Running a matrix: models made ready, then for each workload its reference and its cells, one process at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isorun.errors import IsorunError
from isorun.models import hub
from isorun.system.cache import Cache
from isorun_matrix import environment, isolated
from isorun_matrix.child import JOB, OUTCOME
from isorun_matrix.launch import launch
from isorun_matrix.outcome import conclude
from isorun_matrix.plan import Cell, Plan, Preparation, Workload, key, plan
from isorun_matrix.progress import Lines
from isorun_matrix.results import MEASURED, RunFolder, write_json
from isorun_matrix.spec import Spec


def run(spec: Spec, source: Path, folder: RunFolder, watcher: Lines, *, resume: bool) -> dict[str, Any]:
    """Run every cell of a spec that has no result yet.

    Args:
        spec: what to compare.
        source: the file that it was read from.
        folder: where results go, each as its cell ends.
        watcher: told what happens.
        resume: whether to keep the results in the folder that the same spec, models and versions gave.

    Returns:
        The run's document (:meth:`isorun_matrix.results.RunFolder.document`).

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

    def go(self) -> dict[str, Any]:
        self._describe()
        for preparation in self._plan.preparations:
            self._watcher.working(f"Preparing {preparation.id}")
            self._models[preparation.id] = self._prepare(preparation)
        for workload in self._plan.workloads:
            self._keys[workload.id] = self._key(workload, workload.backend)
        for cell in self._plan.cells:
            there = {} if cell.environment is None else {"environment": self._isolated[cell.environment].about}
            here = cell.backend if cell.environment is None else None
            self._keys[cell.id] = self._key(cell, here, workload=self._keys[cell.workload], **there)
        self._describe()
        measured = {cell.id for cell in self._plan.cells if self._measured(cell)}
        kept = {cell.id for cell in self._plan.cells if cell.id in measured and self._current(cell)}
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

    def _key(self, job: Workload | Cell, backend: str | None, **decides: Any) -> str:
        """A job's key; ``backend`` is the one that it runs here. The versions of others decide nothing, so that one
        which is added to a spec leaves the results of the rest."""
        model = self._models[job.model]
        others = {*self._spec.backends_here} - {backend}
        return key(
            job,
            fingerprint=None if isinstance(model, _Failure) else model["fingerprint"],
            packages={name: version for name, version in self._environment["packages"].items() if name not in others},
            python=self._environment["python"],
            cpu=self._environment["cpu"]["model"],
            **decides,
        )

    def _describe(self) -> None:
        self._folder.write_run(
            {
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "spec_file": str(self._source),
                "spec": self._spec.model_dump(mode="json"),
                "environment": self._environment,
                "cells": [{"key": self._keys.get(cell.id), **_shown(cell)} for cell in self._plan.cells],
            }
        )

    def _measured(self, cell: Cell) -> bool:
        found = self._folder.any_result("cells", cell.id)
        return found is not None and found["status"] in MEASURED

    def _current(self, cell: Cell) -> bool:
        return self._folder.result("cells", cell.id, self._keys[cell.id]) is not None

    def _prepare(self, preparation: Preparation) -> dict[str, Any] | _Failure:
        job = asdict(preparation)
        if preparation.checkpoint is not None:
            try:
                with self._watcher.fetching() as progress:
                    job["checkpoint"] = str(hub.checkpoint_folder(preparation.checkpoint, Cache(), progress))
            except IsorunError as error:
                return _Failure(f"model {preparation.id!r} could not be fetched: {error}")
        result = self._do("isorun_matrix.prepare", "models", preparation.id, key(preparation), job)
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
        self._folder.start("cells", cell.id)
        result = _shown(cell) | {"status": "skipped", "reason": failure.reason}
        return self._folder.write("cells", cell.id, self._keys[cell.id], result)

    def _cell(self, cell: Cell, reference: Mapping[str, Any]) -> dict[str, Any]:
        job = asdict(cell) | {
            "reference": reference,
            "references": str(self._folder.folder("references", cell.workload)),
        }
        return self._do("isorun_matrix.cell", "cells", cell.id, self._keys[cell.id], job, _shown(cell))

    def _reference(self, workload: Workload, model: Mapping[str, Any]) -> dict[str, Any] | _Failure:
        found = self._folder.result("references", workload.id, self._keys[workload.id])
        if found is None or found["status"] != "ok":
            self._watcher.working(f"Computing the reference of {workload.id}")
            job = asdict(workload) | {name: model[name] for name in ("path", "origin", "outputs")}
            found = self._do("isorun_matrix.reference", "references", workload.id, self._keys[workload.id], job)
        if found["status"] != "ok":
            return _Failure(f"the reference of {workload.id} could not be computed: {found['reason']}")
        return found

    def _do(
        self,
        module: str,
        kind: str,
        name: str,
        key: str,
        job: Mapping[str, Any],
        shown: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run a job in a process of its own and keep what became of it."""
        folder = self._folder.start(kind, name)
        write_json(folder / JOB, job)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        ended = launch(module, folder, job["time_limit"])
        outcome = conclude(ended, folder, job["time_limit"])
        result = self._folder.write(kind, name, key, {**(shown or {}), "started": started, **outcome})
        (folder / OUTCOME).unlink(missing_ok=True)
        return result


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
