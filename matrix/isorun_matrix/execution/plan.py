"""From a spec to its jobs, in the order in which they run; what identifies their results, and which a session runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from isorun.errors import BackendUnavailable, SpecError
from isorun.plugin import listing, registry
from isorun.types import Capabilities
from isorun_matrix.jobs import CONTROL, Cell, ModelJob, Workload
from isorun_matrix.measurement import machine
from isorun_matrix.measurement.machine import Environment
from isorun_matrix.report.formatting import shortened
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.spec.backends import Variant
from isorun_matrix.spec.models import Model
from isorun_matrix.spec.quality import labels_of
from isorun_matrix.spec.shapes import Shape
from isorun_matrix.spec.spec import Spec


@dataclass(frozen=True)
class Plan:
    """All jobs of a spec."""

    models: tuple[ModelJob, ...]
    workloads: tuple[Workload, ...]
    cells: tuple[Cell, ...]

    def __str__(self) -> str:
        cells = [cell for cell in self.cells if not cell.control]
        counts = {"model": len(self.models), "workload": len(self.workloads), "cell": len(cells)}
        return ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items())

    def select(self, patterns: Sequence[str]) -> set[str]:
        """The ids of the cells that match a pattern: shell wildcards, or the start of an id. Raises ``SpecError`` for a
        pattern that matches none."""
        names: set[str] = set()
        ids = [cell.id for cell in self.cells if not cell.control]
        for pattern in patterns:
            matching = {name for name in ids if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")}
            if not matching:
                raise SpecError(f"--only {pattern!r} matches no cell. Cells have ids such as {shortened(ids)}")
            names |= matching
        return names


@dataclass(frozen=True)
class Choice:
    """What a session of a run does.

    Attributes:
        resume: whether to continue the run in the folder.
        only: the ids of the cells to measure; ``None`` for all.
        remeasure_disturbed: whether disturbed rounds are repeated again, although they were repeated as often as the
            spec says.
        fingerprints: of the models that are required, where the run is a rerun of another.
        prepared: a run whose seed and references this one uses, so that several machines have the same.
        any_version: whether environments may have versions of runtimes that isorun does not support.
    """

    resume: bool = False
    only: Collection[str] | None = None
    remeasure_disturbed: bool = False
    fingerprints: Mapping[str, str] | None = None
    prepared: RunFolder | None = None
    any_version: bool = False


def plan(spec: Spec, seed: int, isolated: Mapping[str, Mapping[str, Capabilities]] = MappingProxyType({})) -> Plan:
    """The jobs of a spec: each model on each backend, at each of the backend's precisions and the model's shapes.

    Args:
        seed: of the feeds.
        isolated: of each isolated environment, the capabilities of the backends in it.
    """
    offers: dict[tuple[str | None, str], Capabilities]
    offers = {(None, name): capabilities for name in spec.backends_here if (capabilities := _capabilities(name))}
    offers |= {
        (environment, name): capabilities
        for environment, of_environment in isolated.items()
        for name, capabilities in of_environment.items()
    }
    dialects = tuple(dict.fromkeys(offer.dialects for offer in offers.values()))
    workloads: dict[str, Workload] = {}
    cells: dict[str, list[Cell]] = {}
    for name, shape, variant, precision in spec.combinations():
        workload = _workload(spec, seed, name, spec.models[name], shape)
        workloads.setdefault(workload.id, workload)
        cells.setdefault(workload.id, []).append(
            _cell(spec, workload, shape, variant, precision, offers.get((variant.environment, variant.name)))
        )
    for group in cells.values():
        if spec.control and (control := _control(group)):
            group.append(control)
    models = [
        ModelJob(name, model.path, model.checkpoint, model.preset, model.seed or 0, model.outputs, dialects)
        for name, model in spec.models.items()
        if any(workload.model == name for workload in workloads.values())
    ]
    return Plan(tuple(models), tuple(workloads.values()), tuple(cell for group in cells.values() for cell in group))


def key(job: ModelJob | Workload | Cell, **decides: Any) -> str:
    """A digest (hexadecimal) of a job and of all else that decides its result. A result with the same key is reused.

    Args:
        job: the job, without its time limit, and without the dialects of a model: lowering it for another backend does
            not change the results of the others.
        decides: versions, the model's fingerprint and so on: plain data.
    """
    described = {name: value for name, value in asdict(job).items() if name not in ("time_limit", "dialects")}
    content = json.dumps([described, decides], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def find_keys(
    spec: Spec, plan: Plan, environment: Environment, fingerprints: Mapping[str, str], received: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """What identifies the results of the workloads and cells of a plan.

    Args:
        fingerprints: of the models that are available, by their ids.
        received: the keys of references that were computed elsewhere, by the ids of their workloads.

    Returns:
        The keys of everything that decides the results, by the ids of workloads and cells; and those of the part that
        is known without the model and the isolated environment.
    """
    identity = machine.identity(environment)
    sources = {source.id: key(source) for source in plan.models}
    keys, requests = {}, {}
    for job in plan.workloads:
        common = {**_software(spec, environment, job.backend), "cpu": identity["cpu"]["model"]}
        own = key(job, **common, fingerprint=fingerprints.get(job.model))
        keys[job.id], requests[job.id] = received.get(job.id) or own, key(job, **common, source=sources[job.model])
    for cell in plan.cells:
        own_backend = cell.backend if cell.environment is None else None
        common = {**_software(spec, environment, own_backend), "machine": identity}
        isolated = {} if own_backend else {"environment": asdict(environment.environments[str(cell.environment)])}
        whole = {**common, **isolated, "fingerprint": fingerprints.get(cell.model), "workload": keys[cell.workload]}
        keys[cell.id] = key(cell, **whole)
        requests[cell.id] = key(cell, **common, workload=requests[cell.workload])
    return keys, requests


def _capabilities(name: str) -> Capabilities | None:
    """What a backend that runs in this environment declares; ``None`` for a broken plugin: its cells report why."""
    try:
        return listing.load(name).capabilities
    except BackendUnavailable:
        return None


def _workload(spec: Spec, seed: int, name: str, model: Model, shape: Shape) -> Workload:
    lengths = shape.lengths
    assert isinstance(shape.batch, int)
    assert not isinstance(shape.sequence, list)
    return Workload(
        id=f"{name}/{shape.name}",
        model=name,
        batch=shape.batch,
        sequence=shape.sequence,
        dims=shape.dims,
        lengths=lengths if isinstance(lengths, str | list) else lengths.model_dump(),
        texts=None if model.texts is None else model.texts[: shape.batch * spec.feeds],
        feeds=spec.feeds,
        # In a batch of one, a fully masked row would leave nothing to compare.
        masks=[mask for mask in spec.masks if not (mask == "masked-row" and shape.batch == 1)],
        seed=seed,
        backend=spec.reference.backend,
        precision=spec.reference.precision,
        time_limit=spec.reference.time_limit,
        **_search(spec),
    )


def _search(spec: Spec) -> dict[str, Any]:
    """The texts whose vectors are judged, and how."""
    if spec.quality is None:
        return {}
    if spec.quality.labels is not None:
        return {"search": labels_of(spec.quality.labels).texts, "labels": spec.quality.labels}
    return {"search": spec.quality.searched, "neighbours": spec.quality.k}


def _cell(
    spec: Spec, workload: Workload, shape: Shape, variant: Variant, precision: str, offers: Capabilities | None
) -> Cell:
    return Cell(
        id=f"{workload.id}/{variant.label}/{precision}",
        workload=workload.id,
        model=workload.model,
        shape=shape.name,
        batch=workload.batch,
        sequence=workload.sequence,
        backend=variant.name,
        environment=variant.environment,
        label=variant.label,
        precision=precision,
        device=variant.device,
        threads=variant.threads,
        options=variant.options,
        control=False,
        warmup=spec.warmup,
        repetitions=spec.repetitions,
        seconds=spec.time_of_a_cell,
        turns=spec.turns,
        time_limit=spec.time_limit,
        tolerance=spec.tolerance(precision, offers.tolerance(precision) if offers else None),
    )


def _control(cells: Sequence[Cell]) -> Cell | None:
    """The first cell of a workload that can run here, once more; ``None`` if there is nothing to compare it with."""
    for cell in cells if len(cells) > 1 else ():
        try:
            available = cell.environment is not None or registry.availability(listing.load(cell.backend)).ok
        except BackendUnavailable:
            continue
        if available:
            label = f"{cell.label}{CONTROL}"
            return replace(cell, id=f"{cell.workload}/{label}/{cell.precision}", label=label, control=True)
    return None


def _software(spec: Spec, environment: Environment, backend: str | None) -> dict[str, Any]:
    """Versions of other backends are left out, so that adding a backend to a spec keeps the results of the others."""
    others = {*spec.backends_here} - {backend}
    packages = {name: version for name, version in environment.packages.items() if name not in others}
    return {"packages": packages, "python": environment.python}
