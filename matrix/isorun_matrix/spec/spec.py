"""The keys of a spec, their defaults, and their limits.

Every model runs on every backend, at each precision of that backend and each shape of that model.
``docs/matrix-spec.md`` describes the keys for people, ``isorun matrix schema`` for editors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import ConfigDict, Field

from isorun.errors import did_you_mean
from isorun.parity import DEFAULT_TOLERANCES, Tolerance
from isorun.parity.samples import MASKS
from isorun_matrix.spec.backends import BackendName, Entry, Environment, Threads, Variant
from isorun_matrix.spec.field_types import Count, Name, Seconds, Strict
from isorun_matrix.spec.load_scenario import Load
from isorun_matrix.spec.models import Model
from isorun_matrix.spec.quality import Quality
from isorun_matrix.spec.shapes import Shape, Shapes

DEFAULT_SECONDS = 1.0
Problem = tuple[tuple[int | str, ...], str]


class Machine(Strict):
    """A machine. Without ``labels`` and ``resources``, any node of a cluster will do."""

    labels: dict[str, str] = Field(default_factory=dict, description="labels that its Ray node must have")
    resources: dict[str, float] = Field(default_factory=dict, description="resources that its Ray node must have")
    cost: float | None = Field(default=None, gt=0, description="the price of an hour, in any currency")
    watts: float | None = Field(default=None, gt=0, description="the power that it draws under load")


class Limits(Strict):
    """Limits of parity; an omitted limit keeps the default of its precision. See ``isorun.parity``."""

    max_rel: float | None = Field(default=None, ge=0, lt=1, description="maximum relative error of an element")
    rms: float | None = Field(default=None, ge=0, lt=1, description="maximum root mean square of the error, relative")
    cosine: float | None = Field(default=None, gt=0, le=1, description="minimum cosine of a row")
    max_abs: float | None = Field(default=None, ge=0, description="maximum absolute error of an element; no default")
    argmax: float | None = Field(default=None, ge=0, le=1, description="minimum share of rows with the same argmax")


class Reference(Strict):
    """What every cell is compared with."""

    backend: BackendName = Field(default="reference", description="the default is exact and slow")
    precision: str = Field(default="fp64", description="one that the backend has")
    time_limit: Seconds = Field(default=1800.0, description="seconds per model and shape")


class Selection(Strict):
    """Some of the cells: those that match every key. Texts may have ``*`` and ``?``."""

    model: str | None = Field(default=None, description="a name")
    shape: str | None = Field(default=None, description="a name, such as 8x128")
    backend: str | None = Field(default=None, description="a label, or the name of a backend")
    precision: str | None = Field(default=None, description="such as bf16")
    threads: Count | None = Field(default=None, description="of backends for which the spec sets them")

    def matches(self, model: str, shape: Shape, variant: Variant, precision: str) -> bool:
        """Whether a cell is one of them."""
        texts = (
            (self.model, (model,)),
            (self.shape, (shape.name,)),
            (self.backend, (variant.label, variant.name)),
            (self.precision, (precision,)),
        )
        if self.threads is not None and self.threads != variant.threads:
            return False
        return all(
            pattern is None or any(fnmatchcase(text, pattern) for text in candidates) for pattern, candidates in texts
        )


class Spec(Strict):
    """A comparison of backends. Top-level keys that start with ``x-`` hold anchors and are ignored."""

    model_config = ConfigDict(json_schema_extra={"patternProperties": {"^x-": {}}})

    models: dict[Name, Model] = Field(min_length=1, description="models by name")
    backends: list[Entry] = Field(min_length=1, description="what is compared: names or mappings")
    environments: dict[Name, Environment] = Field(
        default_factory=dict, description="isolated environments for backends, created where they are missing"
    )
    machines: dict[Name, Machine] = Field(default_factory=dict, description="the machines that are compared")
    shapes: Shapes | None = Field(default=None, description="of models without shapes")
    precisions: list[Name] = Field(default=["fp32"], min_length=1, description="of backends without precisions")
    threads: Threads | None = Field(default=None, description="of backends without threads")
    device: str | None = Field(default=None, description="of backends without a device")
    include: list[Selection] | None = Field(default=None, min_length=1, description="run these cells only")
    exclude: list[Selection] = Field(default_factory=list, description="do not run these cells")
    masks: list[Literal[tuple(MASKS)]] = Field(  # type: ignore[valid-type]
        default=["right"], description="kinds of padding on which parity is checked, in addition to the timed feeds"
    )
    feeds: Count = Field(default=4, description="how many different feeds are timed, in turn")
    seed: int | None = Field(default=None, ge=0, description="of the feeds; drawn for each run by default")
    reference: Reference = Field(default=Reference(), description="what computes the outputs to compare with")
    rounds: Count = Field(default=5, description="how many processes measure a cell, one in each round")
    repeats: int = Field(default=3, ge=0, description="how many rounds are added where rounds were disturbed")
    common_rounds: bool = Field(
        default=False, description="measure all models at a shape in the same rounds, as isorun matrix ab does"
    )
    control: bool = Field(default=True, description="measure one cell of each workload twice")
    warmup: int = Field(default=10, ge=0, description="minimum runs before the measured ones; 0 for none")
    repetitions: Count | None = Field(default=None, description="measured runs in a round, instead of seconds")
    seconds: Seconds | None = Field(default=None, description="how long a cell is measured in a round; 1 by default")
    turns: Count = Field(
        default=20,
        description="maximum parts in which a cell is measured in a round, in turn with the others",
    )
    time_limit: Seconds = Field(
        default=300.0, description="seconds after which a process is stopped, its pauses not included"
    )
    load: list[Load] = Field(
        default_factory=list,
        description="scenarios of load, measured after the rounds: single-stream, closed, server, offline",
    )
    tolerances: dict[str, Limits] = Field(default_factory=dict, description="limits of parity by precision")
    quality: Quality | None = Field(
        default=None, description="what a search must keep, for models that make vectors of texts"
    )

    def problems(self) -> Iterator[Problem]:
        """What contradicts itself, with its place."""
        if self.repetitions is not None and self.seconds is not None:
            yield ("repetitions",), "repetitions and seconds are mutually exclusive. Remove one of them."
        elif (self.time_of_a_cell or 0) >= self.time_limit:
            yield (
                ("time_limit",),
                f"seconds ({self.time_of_a_cell:g}) must be less than time_limit ({self.time_limit:g}), which counts "
                "from the start of a process",
            )
        for name, model in self.models.items():
            shapes = self.shapes_of(name)
            if double := _repeated(shape.name for shape in shapes):
                yield (
                    ("models", name),
                    f"two shapes of model {name!r} have the name {double!r}. Give one of them another name.",
                )
            if model.texts is not None and (bad := [s.name for s in shapes if s.sequence is None]):
                yield ("models", name), f"model {name!r} has texts, so its shape {bad[0]} needs a sequence"
            if model.texts is not None and (bad := [s.name for s in shapes if s.lengths != "full"]):
                yield (
                    ("models", name),
                    f"model {name!r} has texts, which determine the lengths. Remove lengths from its shape {bad[0]}.",
                )
        for listed in ("precisions", "threads", "masks"):
            if isinstance(items := getattr(self, listed), list) and (double := _repeated(items)):
                yield (listed,), f"{listed} has {double!r} twice"
        for precision in dict.fromkeys(precision for variant in self.variants for precision in variant.precisions):
            try:
                self.tolerance(precision)
            except ValueError as error:
                yield self._place_of(precision), str(error)
        if twice_named := _repeated(load.name for load in self.load):
            yield ("load",), f"two scenarios have the name {twice_named!r}. Give one of them another name."

    def conflicts(self) -> Iterator[Problem]:
        """Which parts do not fit together, with a place. An invalid part may be the one that is missed."""
        labels = Counter(variant.label for variant in self.variants)
        for index, entry in enumerate(self.backends):
            if twice := [variant.label for variant in self._variants_of(entry) if labels[variant.label] > 1]:
                yield ("backends", index), f"two backends have the label {twice[0]!r}. Give one of them another label."
                labels[twice[0]] = 0
        measured = {model for model, *_ in self.combinations(selected=False)}
        for name in self.models:
            if not self.shapes_of(name):
                yield ("models", name), f"model {name!r} has no shapes. Add shapes to the model or to the spec."
            elif name not in measured:
                yield ("models", name), f"no backend runs at a shape of model {name!r}. Add one to shapes of a backend."
        known = {shape.name for name in self.models for shape in self.shapes_of(name)}
        for index, entry in enumerate(self.backends):
            for shape in entry.shapes or ():
                if shape not in known:
                    yield ("backends", index, "shapes"), f"no model has the shape {shape!r}{did_you_mean(shape, known)}"
        used = {precision for variant in self.variants for precision in variant.precisions} | DEFAULT_TOLERANCES.keys()
        for precision in self.tolerances.keys() - used:
            near = did_you_mean(precision, used)
            yield ("tolerances", precision), f"no backend of this spec uses this precision{near}"
        yield from self._idle_selections()
        yield from self._machine_problems()

    def _machine_problems(self) -> Iterator[Problem]:
        for place, machine in self._named_machines():
            if machine not in self.machines:
                yield place, f"unknown machine {machine!r}{did_you_mean(machine, self.machines)}"
        for machine in self.machines:
            if not any(self.on(machine).combinations()):
                yield (
                    ("machines", machine),
                    "no cell runs on this machine. Remove it, or add it to the machines of a backend.",
                )

    def on(self, machine: str) -> Spec:
        """The spec of one of the machines: with the backends and models that name it, or no machine."""
        return self.model_copy(
            update={
                "backends": [entry for entry in self.backends if machine in (entry.machines or [machine])],
                "models": {
                    name: model for name, model in self.models.items() if machine in (model.machines or [machine])
                },
            }
        )

    @property
    def is_divided(self) -> bool:
        """Whether backends or models name machines, so that machines run different cells."""
        return any(self._named_machines())

    def _named_machines(self) -> Iterator[Problem]:
        """The machines that backends and models name, with their places."""
        for kind, entries in (("backends", enumerate(self.backends)), ("models", self.models.items())):
            for key, entry in entries:
                yield from (((kind, key, "machines"), machine) for machine in entry.machines or ())

    def _idle_selections(self) -> Iterator[Problem]:
        cells = list(self.combinations(selected=False))
        idle = False
        for key, selections in (("include", self.include or []), ("exclude", self.exclude)):
            for index, selection in enumerate(selections):
                if cells and not any(selection.matches(*cell) for cell in cells):
                    idle = True
                    yield (key, index), "no cell matches this selection. Fix or remove it."
        if cells and not idle and not any(self.combinations()):
            yield ("exclude",), "no cell is left to run. Narrow exclude or widen include."

    def combinations(self, *, selected: bool = True) -> Iterator[tuple[str, Shape, Variant, str]]:
        """Each cell: the model, the shape, the backend and the precision; if ``selected``, as ``include`` and
        ``exclude`` say."""
        for model in self.models:
            for shape in self.shapes_of(model):
                for variant in self.variants:
                    if variant.shapes is not None and shape.name not in variant.shapes:
                        continue
                    for precision in variant.precisions:
                        cell = (model, shape, variant, precision)
                        included = self.include is None or any(choice.matches(*cell) for choice in self.include)
                        if not selected or (included and not any(choice.matches(*cell) for choice in self.exclude)):
                            yield cell

    def cell_ids(self, *, selected: bool = True) -> Iterator[str]:
        """The ids of the same cells."""
        for model, shape, variant, precision in self.combinations(selected=selected):
            yield f"{model}/{shape.name}/{variant.label}/{precision}"

    @property
    def variants(self) -> list[Variant]:
        """The backends, once for each number of threads and set of options."""
        return [variant for entry in self.backends for variant in self._variants_of(entry)]

    def _variants_of(self, entry: Entry) -> list[Variant]:
        return entry.variants(self.precisions, self.device, self.threads)

    @property
    def time_of_a_cell(self) -> float | None:
        """How long a cell is measured in a round, in seconds; ``None`` if ``repetitions`` is set."""
        return None if self.repetitions is not None else self.seconds or DEFAULT_SECONDS

    @property
    def backends_here(self) -> list[str]:
        """The distinct names of the backends that run in this environment, the reference's first."""
        names = [entry.name for entry in self.backends if entry.environment is None]
        return list(dict.fromkeys([self.reference.backend, *names]))

    @property
    def isolated(self) -> dict[str, list[str]]:
        """The environments that backends run in, each with the names of those backends."""
        names: dict[str, list[str]] = {}
        for entry in self.backends:
            if entry.environment is not None:
                names.setdefault(entry.environment, []).append(entry.name)
        return names

    def _place_of(self, precision: str) -> tuple[str | int, ...]:
        """Where a precision is requested first."""
        if precision in self.precisions:
            return "precisions", self.precisions.index(precision)
        places = (
            ("backends", index, "precisions", entry.precisions.index(precision))
            for index, entry in enumerate(self.backends)
            if entry.precisions and precision in entry.precisions
        )
        return next(places, ("tolerances",))

    def shapes_of(self, model: str) -> list[Shape]:
        """The shapes that a model runs at."""
        return self.models[model].shapes or self.shapes or []

    def tolerance(self, precision: str, judged_as: str | None = None) -> Tolerance:
        """The limits of parity at a precision.

        Args:
            precision: whose limits in the spec apply.
            judged_as: the precision whose defaults apply, for a backend that approximates
                (``Capabilities.tolerance``); ``None`` for the same.

        Raises:
            ValueError: it has no default, and the spec lacks a required limit.
        """
        default = DEFAULT_TOLERANCES.get(judged_as or precision)
        limits = self.tolerances.get(precision, Limits()).model_dump(exclude_none=True)
        if default is None and not {"max_rel", "rms", "cosine"} <= limits.keys():
            raise ValueError(
                f"unknown precision {precision!r}{did_you_mean(precision, DEFAULT_TOLERANCES)}. For one that a plugin "
                f"adds, set max_rel, rms and cosine in tolerances.{precision}."
            )
        return Tolerance(**limits) if default is None else Tolerance(**{**vars(default), **limits})


def _repeated(names: Iterable[str | int]) -> str | int | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
