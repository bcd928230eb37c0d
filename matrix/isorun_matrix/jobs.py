"""The jobs of a matrix. Each runs in a process of its own and is handed over as JSON: prepare a model, compute the
reference of a workload, measure a cell. Time limits are in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, get_type_hints

from isorun.parity import Tolerance
from isorun.quality import K

Job = TypeVar("Job")

CONTROL = "~control"
"""Ends the label of a control. A label in a spec cannot contain it."""


@dataclass(frozen=True)
class ModelJob:
    """Fetch or build a model, and lower it for every backend that will read it.

    Attributes:
        id: the model's name in the spec.
        path, checkpoint, preset: where it comes from; exactly one is given.
        outputs: the required outputs; ``None`` for all.
        dialects: for each backend, the dialects that it reads.
    """

    id: str
    path: str | None
    checkpoint: str | None
    preset: str | None
    seed: int
    outputs: Sequence[str] | None
    dialects: Sequence[Sequence[str]]
    time_limit: float = 3600.0


@dataclass(frozen=True)
class PreparedModel:
    """A model that is ready to be opened.

    Attributes:
        path: the ONNX file.
        origin: the file or folder beside which a tokenizer would be.
    """

    path: str
    origin: str
    outputs: Sequence[str] | None
    fingerprint: str


@dataclass(frozen=True)
class Workload:
    """What the cells of one model at one shape are fed, and what computes the outputs that they are compared with.

    Attributes:
        id: ``model/shape``.
        dims: the sizes of other dimensions, by name.
        lengths: real tokens in each row: ``"full"``, a list, or the members of a distribution.
        texts: tokenized instead of random ids; ``None`` for random ids.
        feeds: how many sets of feeds are timed.
        masks: further kinds of padding on which only parity is checked.
        backend, precision: what computes the reference.
        search: texts whose vectors are judged; ``None`` if they are not.
        neighbours: how many neighbours of each text count.
        labels: judge the vectors instead of their neighbours: JSON objects (:mod:`isorun.quality.labels`), whose texts
            are ``search``.
    """

    id: str
    model: str
    batch: int
    sequence: int | None
    dims: Mapping[str, int]
    lengths: Any
    texts: Sequence[str] | None
    feeds: int
    masks: Sequence[str]
    seed: int
    backend: str
    precision: str
    time_limit: float
    search: Sequence[str] | None = None
    neighbours: int = K
    labels: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class ReferenceJob:
    """Compute the reference of a workload.

    Attributes:
        others: the folders of such jobs for other shapes of the model, which the same session computes first.
    """

    workload: Workload
    model: PreparedModel
    others: Sequence[str] = ()


@dataclass(frozen=True)
class Reference:
    """What the cells of a workload need to know of its reference. The arrays are in files.

    Attributes:
        cases: the names of all sets of feeds.
        tokens: real tokens in each set; ``None`` for a model without a sequence.
        mask: the input that says which tokens are padding; ``None`` for a model without one.
        marks_padding: whether this input is 1 at padding.
        token_level: outputs with a value for each token; ``None`` to tell by shape.
        notes: remarks on the feeds.
        provenance: what computed the reference.
        neighbours: how many nearest neighbours of a text are compared, unless there are labels; ``None`` if vectors are
            not judged.
    """

    cases: Sequence[str]
    tokens: Mapping[str, int | None]
    mask: str | None
    token_level: Sequence[str] | None
    notes: Sequence[str]
    provenance: Mapping[str, Any]
    neighbours: int | None = None
    marks_padding: bool = False


@dataclass(kw_only=True)
class CellFields:
    """What identifies a cell: its place in the matrix, and what runs. Jobs, records and reports share these fields.

    Attributes:
        id: ``model/shape/label/precision``.
        environment: the isolated environment that it runs in; ``None`` for this one.
        device: ``None`` for the backend's first.
        threads: ``None`` for all usable cores.
        control: whether it is the second of two identical cells, which shows the noise of a workload.
    """

    id: str
    model: str
    shape: str
    batch: int
    sequence: int | None
    backend: str
    environment: str | None
    label: str
    precision: str
    device: str | None
    options: Mapping[str, Any]
    threads: int | None
    control: bool

    @property
    def name(self) -> str:
        """What tells the cell from the others of its model and shape."""
        return f"{self.label} {self.precision}"

    @property
    def identity(self) -> dict[str, Any]:
        """These fields."""
        return {field.name: getattr(self, field.name) for field in fields(CellFields)}


@dataclass(kw_only=True)
class Cell(CellFields):
    """What is measured, once in each round.

    Attributes:
        workload: the id of its workload.
        warmup, repetitions, seconds: how often it runs in a round; exactly one of the last two is given.
        turns: in how many parts, at most, it is measured in a round, in turn with the others.
        time_limit: in seconds, from the start of the process, its pauses not included.
        tolerance: the limits of parity.
    """

    workload: str
    warmup: int
    repetitions: int | None
    seconds: float | None
    turns: int
    time_limit: float
    tolerance: Tolerance


@dataclass(frozen=True)
class CellJob:
    """Try a cell, or measure it in one round.

    Attributes:
        reference_folder: has the feeds and the outputs of the reference.
        seed: selects the timed runs whose outputs are compared with the reference.
    """

    cell: Cell
    model: PreparedModel
    reference: Reference
    reference_folder: str
    seed: int


@dataclass(frozen=True)
class LoadJob(CellJob):
    """Put a cell under load; ``load`` is the scenario, as in the spec."""

    load: Mapping[str, Any]


def from_json(kind: type[Job], content: Mapping[str, Any]) -> Job:
    """A job, and the dataclasses in it, from plain data."""
    types = get_type_hints(kind)
    return kind(
        **{
            name: from_json(types[name], value) if is_dataclass(types[name]) else value
            for name, value in content.items()
        }
    )
