"""What a run stores, as types: ``run.json``, and the ``result.json`` of each job.

Writing, resuming, comparing and reporting use the same types. Figures are dataclasses of
:mod:`isorun_matrix.measurement`, which the measuring processes can use without pydantic.

A cell is stored as a trial and one result for each round; :class:`CellResult` is made of them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, field_validator, model_validator

from isorun.system.cache import sha256
from isorun_matrix.jobs import CellFields, PreparedModel, Reference
from isorun_matrix.measurement.figures import Figures, Measurement, Trial
from isorun_matrix.measurement.load.figures import LoadFigures
from isorun_matrix.measurement.machine import Environment
from isorun_matrix.text import encodable

SCHEMA = 2
_DEPTH = 64  # maximum nesting; recursive code would fail on deeper data
STATUSES = {
    "ok": "ran, and its outputs are right",
    "parity-failed": "ran, and its outputs exceed the tolerance or are not finite",
    "quality-failed": "ran, and its vectors lose too many nearest neighbours, or too much of the score by labels",
    "unavailable": "the backend does not support what is requested, or is not available here",
    "unsupported": "the backend lacks an operator of the model",
    "error": "isorun or the runtime reported an error",
    "crashed": "the process, or its worker in an environment, was killed by a signal",
    "timeout": "stopped at its time limit",
    "skipped": "its model, reference or environment is not available",
    "pending": "has not run yet",
}
MEASURED = ("ok", "parity-failed")
"""The statuses of jobs that measured something."""

LACKING = ("unavailable", "unsupported")
"""The statuses of cells that this machine or backend cannot run: nothing went wrong."""

Content = TypeVar("Content", bound="Record")
Returned = TypeVar("Returned")


class Record(BaseModel):
    """Stored data. JSON is validated strictly; unknown members are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Self:
        """A record from plain data, as JSON has it.

        Raises:
            ValueError: a number is not finite, or the content does not fit (``pydantic.ValidationError``).
            RecursionError: it is nested too deeply.
        """
        return cls.model_validate_json(json.dumps(reportable(content), allow_nan=False))


class Ended(Record):
    """How a job or a cell ended.

    Attributes:
        reason, remedy: why the status is not ``ok``, and what to do about it.
        log: the end of the process's output, where it says more than ``reason``.
        started: the date and time of the first process.
        wall_s: how long all of them ran.
    """

    status: Literal[tuple(STATUSES)]  # type: ignore[valid-type]
    reason: str | None = None
    remedy: str | None = None
    log: str | None = None
    started: str | None = None
    wall_s: float | None = None


class JobResult(Ended, Generic[Returned]):
    """The result of any job.

    Attributes:
        key: a digest of all that decides the result; ``None`` for a job that has not run.
        files: SHA-256 of the files beside it, by name, but of the log.
        seal: SHA-256 of all other members (:func:`isorun_matrix.results.reader.seal`), by which a change is found;
            ``None`` in files of versions without it.
        result: what the job returned; given if the status is in :data:`MEASURED`.
    """

    key: str | None = None
    files: dict[str, str] = {}
    seal: str | None = None
    result: Returned | None = None

    @model_validator(mode="after")
    def _has_result(self) -> Self:
        if self.status in MEASURED and self.result is None:
            raise ValueError(f"result is missing, but the status is {self.status}")
        return self


ModelResult = JobResult[PreparedModel]
ReferenceResult = JobResult[Reference]


class RoundPlace(Record):
    """Where a measurement belongs: the number of its round in the workload, its place in the round's shuffled order,
    and the ids of all cells in that order."""

    number: int
    position: int
    order: list[str]

    @property
    def together(self) -> str:
        """A digest of the cells of the round."""
        return sha256("/".join(sorted(self.order)).encode())[:8]

    @property
    def key(self) -> tuple[int, str]:
        """What the round of another cell has in common if both were measured in turn."""
        return self.number, self.together


class CellJobResult(JobResult[Returned]):
    """A cell that was tried or measured.

    Attributes:
        request: the part of the key that is known without the model and the environment.
        machine: :func:`isorun_matrix.measurement.machine.identity`.
    """

    request: str
    machine: dict[str, Any]


TrialResult = CellJobResult[Trial]


class RoundResult(CellJobResult[Measurement]):
    """A cell in one round."""

    round: RoundPlace
    seed: int

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if (result := self.result) is not None:
            latency, repetition = result.latency_ms, result.repetition
            times = (latency.mean, latency.p50 or latency.mean, repetition.repeated_ms, repetition.varied_ms)
            if min(times) <= 0 or (result.cpu_ms or 0) < 0:
                raise ValueError("the time of a run must be above 0")
        return self


def _has_name(scenario: dict[str, Any]) -> dict[str, Any]:
    if "name" not in scenario:
        raise ValueError("a scenario has no name")
    return scenario


Scenario = Annotated[dict[str, Any], AfterValidator(_has_name)]
"""A load scenario, as in the spec."""


class LoadResult(JobResult[LoadFigures]):
    """A cell under load.

    Attributes:
        load: the scenario.
        together: the ids of the cells that had their turns with it.
    """

    load: Scenario
    together: list[str] = []

    @property
    def name(self) -> str:
        """The name of the scenario."""
        return str(self.load["name"])


class CellId(Record, CellFields):
    """What identifies a cell."""


class PlannedCell(CellId):
    """A cell in ``run.json``.

    Attributes:
        key: that of the results that belong to the run; ``None`` until it is known.
        failure: why the cell cannot be measured now, though it may have results of an earlier session.
    """

    key: str | None = None
    failure: str | None = None


class CellResult(Ended, CellId):
    """A cell with the figures of all its rounds.

    Attributes:
        loads: the cell under load, in the order of the spec.
        kept: why measurements of an earlier session are kept without a check; ``None`` for any other cell.
    """

    kept: str | None = None
    result: Figures | None = None
    loads: list[LoadResult] = []

    def as_document(self) -> dict[str, Any]:
        """The cell in ``report --format json``: the figures are members of the cell; missing ones are ``None``."""
        cell = self.model_dump(mode="json", exclude={"result"})
        figures = dict.fromkeys(field.name for field in fields(Figures) if field.name not in cell)
        return cell | (figures if self.result is None else plain(self.result))


class RecordedModel(Record, extra="allow"):
    """A model in a recorded spec."""

    shapes: list[dict[str, Any]] | None = None


class RecordedReference(Record, extra="allow"):
    """The reference in a recorded spec."""

    backend: str
    precision: str


class RecordedMachine(Record, extra="allow"):
    """A machine in a recorded spec: the price of an hour, and its power in watts."""

    cost: float | None = None
    watts: float | None = None


class RecordedQuality(Record, extra="allow"):
    """What a search must keep, in a recorded spec."""

    minimum: float


class RecordedSpec(Record, extra="allow"):
    """The spec of a run, with every default. What it names need not exist where it is read."""

    models: dict[str, RecordedModel]
    backends: list[dict[str, Any]]
    shapes: list[dict[str, Any]] | None
    reference: RecordedReference
    rounds: int
    load: list[Scenario] = []
    machines: dict[str, RecordedMachine] = {}
    quality: RecordedQuality | None = None


class RunSession(Record):
    """One call of ``matrix run`` on a folder."""

    started: str
    spec_file: str
    environment: Environment


class RunRecord(Record):
    """``run.json``.

    Attributes:
        created: when the first session started.
        sessions: every session, the last one last.
        seed: of the feeds.
        fingerprints: of the models, as far as they are known.
    """

    created: str
    sessions: list[RunSession] = Field(min_length=1)
    spec: RecordedSpec
    seed: int
    fingerprints: dict[str, str]
    cells: list[PlannedCell] = Field(min_length=1)

    @field_validator("cells")
    @classmethod
    def _unique(cls, cells: list[PlannedCell]) -> list[PlannedCell]:
        twice = [name for name, count in Counter(cell.id for cell in cells).items() if count > 1]
        if twice:
            raise ValueError(f"the id {twice[0]!r} is not unique")
        return cells


class Run(Record):
    """A run with its results, from which every report is made. A cell that has not run is ``pending``."""

    folder: str
    created: str
    sessions: int = 1
    seed: int
    spec: RecordedSpec
    environment: Environment
    cells: list[CellResult]

    @cached_property
    def by_id(self) -> dict[str, CellResult]:
        """The cells by their ids, without controls."""
        return {cell.id: cell for cell in self.cells if not cell.control}

    @cached_property
    def measurements(self) -> frozenset[tuple[str, str, str, float]]:
        """The rounds of all cells: machine, cell, when it was measured, and its median. Copies of a run share them."""
        measured = ((cell.id, cell.result.rounds) for cell in self.cells if cell.result is not None)
        host = self.environment.host
        return frozenset((host, name, entry.started, entry.p50) for name, rounds in measured for entry in rounds)

    def as_document(self) -> dict[str, Any]:
        """The run as ``report --format json`` prints it."""
        cells = [cell.as_document() for cell in self.cells]
        about = {"created": self.created, "sessions": self.sessions, "seed": self.seed}
        return {"schema": SCHEMA, **about, "environment": plain(self.environment), "cells": cells}


def plain(value: Any) -> Any:
    """A dataclass as plain data for JSON."""
    return TypeAdapter(type(value)).dump_python(value, mode="json")


def reportable(value: Any, depth: int = 0) -> Any:
    """Plain data that every report can print: finite numbers, text that UTF-8 can encode."""
    if depth > _DEPTH:
        raise RecursionError
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    if isinstance(value, list):
        return [reportable(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {reportable(key): reportable(item, depth + 1) for key, item in value.items()}
    return value
