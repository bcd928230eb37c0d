"""From a spec to the jobs that answer it: models to prepare, references to compute, cells to measure.

Each job is plain data that goes to a process of its own as JSON. Its key is a digest of all that decides its
result; a result with the same key need not be made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from isorun.errors import BackendUnavailable
from isorun.parity import Tolerance
from isorun.plugin import registry
from isorun_matrix.spec.models import Model
from isorun_matrix.spec.shapes import Shape
from isorun_matrix.spec.spec import Spec

_PREPARE_SECONDS = 3600.0


@dataclass(frozen=True)
class Preparation:
    """A model to be made ready: fetched or built, and lowered for every backend that will read it.

    Attributes:
        id: the model's name in the spec.
        path, checkpoint, preset, seed: where it comes from; one of the first three is given.
        outputs: those of its outputs that are wanted; ``None`` for all.
        dialects: for each backend, the dialects that it reads.
        time_limit: in seconds.
    """

    id: str
    path: str | None
    checkpoint: str | None
    preset: str | None
    seed: int
    outputs: tuple[str, ...] | None
    dialects: tuple[tuple[str, ...], ...]
    time_limit: float = _PREPARE_SECONDS


@dataclass(frozen=True)
class Workload:
    """What the cells of one model at one shape are fed, and the outputs that they are compared with.

    Attributes:
        id: ``model/shape``.
        model: the model's name in the spec.
        batch, sequence, dims: the sizes of the feeds' dimensions.
        lengths: real tokens in a row, as the spec has it.
        texts: what is tokenized in place of random ids; ``None`` for random ids.
        feeds: how many different feeds.
        masks: the kinds of padding that parity is checked on beside them.
        seed: of the feeds.
        backend, precision: what computes the reference.
        time_limit: in seconds.
    """

    id: str
    model: str
    batch: int
    sequence: int | None
    dims: Mapping[str, int]
    lengths: Any
    texts: tuple[str, ...] | None
    feeds: int
    masks: tuple[str, ...]
    seed: int
    backend: str
    precision: str
    time_limit: float


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        id: ``model/shape/label/precision``.
        workload: the id of what it is fed.
        model, shape, batch, sequence: where it stands in the matrix.
        backend, label, precision, threads, options: what runs; ``threads`` is ``None`` for all usable cores.
        environment: the isolated environment that it runs in; ``None`` for this one.
        warmup, repetitions, seconds: how often it runs; one of the last two is given.
        time_limit: in seconds, from the start of the process.
        tolerance: the limits of parity.
    """

    id: str
    workload: str
    model: str
    shape: str
    batch: int
    sequence: int | None
    backend: str
    environment: str | None
    label: str
    precision: str
    threads: int | None
    options: Mapping[str, Any]
    warmup: int
    repetitions: int | None
    seconds: float | None
    time_limit: float
    tolerance: Tolerance


@dataclass(frozen=True)
class Plan:
    """All jobs of a spec, in the order in which they run."""

    preparations: tuple[Preparation, ...]
    workloads: tuple[Workload, ...]
    cells: tuple[Cell, ...]


def plan(spec: Spec, elsewhere: Iterable[tuple[str, ...]] = ()) -> Plan:
    """The jobs of a spec: every model on every backend, at each of its precisions and of the model's shapes.

    Args:
        spec: what to compare.
        elsewhere: the dialects that backends in isolated environments read.
    """
    dialects = tuple(dict.fromkeys([*_dialects(spec), *elsewhere]))
    preparations, workloads, cells = [], [], []
    for name, model in spec.models.items():
        outputs = None if model.outputs is None else tuple(model.outputs)
        preparations.append(
            Preparation(name, model.path, model.checkpoint, model.preset, model.seed or 0, outputs, dialects)
        )
        for shape in spec.shapes_of(name):
            workload = _workload(spec, name, model, shape)
            workloads.append(workload)
            cells += _cells(spec, workload, shape)
    return Plan(tuple(preparations), tuple(workloads), tuple(cells))


def key(job: Preparation | Workload | Cell, **decides: Any) -> str:
    """A digest (hexadecimal) of a job and of what else decides its result.

    Args:
        job: the job. Its time limit decides nothing: a result is the same however long it might have taken. Nor do the
            dialects of a model: lowering it for one more backend leaves the others' results.
        decides: versions, the model's fingerprint and so on: plain data.
    """
    described = {name: value for name, value in asdict(job).items() if name not in ("time_limit", "dialects")}
    content = json.dumps([described, decides], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _dialects(spec: Spec) -> Iterator[tuple[str, ...]]:
    """What the spec's backends that run in this environment read, in the spec's order."""
    for name in spec.backends_here:
        try:
            yield registry.get(name).capabilities.dialects
        except BackendUnavailable:  # a broken plugin reads nothing; its cells say what is wrong
            continue


def _workload(spec: Spec, name: str, model: Model, shape: Shape) -> Workload:
    lengths = shape.lengths
    needed = shape.batch * spec.feeds
    return Workload(
        id=f"{name}/{shape.name}",
        model=name,
        batch=shape.batch,
        sequence=shape.sequence,
        dims=shape.dims,
        lengths=lengths if isinstance(lengths, str | list) else lengths.model_dump(),
        texts=None if model.texts is None else tuple(model.texts[:needed]),
        feeds=spec.feeds,
        # In a batch of one, the row without real tokens would be the only one: nothing to compare.
        masks=tuple(mask for mask in spec.masks if not (mask == "masked-row" and shape.batch == 1)),
        seed=spec.seed,
        backend=spec.reference.backend,
        precision=spec.reference.precision,
        time_limit=spec.reference.time_limit,
    )


def _cells(spec: Spec, workload: Workload, shape: Shape) -> list[Cell]:
    return [
        Cell(
            id=f"{workload.id}/{entry.label}/{precision}",
            workload=workload.id,
            model=workload.model,
            shape=shape.name,
            batch=shape.batch,
            sequence=shape.sequence,
            backend=entry.name,
            environment=entry.environment,
            label=entry.label,
            precision=precision,
            threads=entry.threads,
            options=entry.options,
            warmup=spec.warmup,
            repetitions=spec.repetitions,
            seconds=spec.time_of_a_cell,
            time_limit=spec.time_limit,
            tolerance=spec.tolerance(precision),
        )
        for entry in spec.backends
        for precision in entry.precisions
    ]
