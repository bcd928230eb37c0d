"""What identifies the results of each job of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from isorun_matrix.execution.plan import Plan, key
from isorun_matrix.measurement import machine
from isorun_matrix.measurement.machine import Environment
from isorun_matrix.spec.spec import Spec


@dataclass(frozen=True, slots=True)
class JobKey:
    """What identifies the results of a job.

    Attributes:
        key: of everything that decides them. A result with the same key is reused.
        request: of the part that is known without the model and the isolated environment.
    """

    key: str
    request: str


def find(
    spec: Spec, plan: Plan, environment: Environment, fingerprints: Mapping[str, str], received: Mapping[str, str]
) -> dict[str, JobKey]:
    """The keys of the workloads and cells of a plan, by their ids.

    Args:
        spec: what the plan was made from.
        plan: the jobs.
        environment: where they run.
        fingerprints: of the models that are available, by their ids.
        received: the keys of references that were computed elsewhere, by the ids of their workloads.
    """
    identity = machine.identity(environment)
    sources = {source.id: key(source) for source in plan.models}
    keyed = {}
    for job in plan.workloads:
        common = {**_software(spec, environment, job.backend), "cpu": identity["cpu"]["model"]}
        own = received.get(job.id) or key(job, **common, fingerprint=fingerprints.get(job.model))
        keyed[job.id] = JobKey(own, key(job, **common, source=sources[job.model]))
    for cell in plan.cells:
        here = cell.backend if cell.environment is None else None
        common = {**_software(spec, environment, here), "machine": identity}
        isolated = {} if here else {"environment": asdict(environment.environments[str(cell.environment)])}
        workload = keyed[cell.workload]
        keyed[cell.id] = JobKey(
            key(cell, **common, **isolated, fingerprint=fingerprints.get(cell.model), workload=workload.key),
            key(cell, **common, workload=workload.request),
        )
    return keyed


def _software(spec: Spec, environment: Environment, backend: str | None) -> dict[str, Any]:
    """Versions of other backends are left out, so that adding a backend to a spec keeps the results of the others."""
    others = {*spec.backends_here} - {backend}
    packages = {name: version for name, version in environment.packages.items() if name not in others}
    return {"packages": packages, "python": environment.python}
