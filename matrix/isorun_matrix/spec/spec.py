"""The keys of a spec, their defaults, and their limits.

Every model runs on every backend, at each precision of that backend and each shape of that model. ``docs/matrix.md``
describes the keys for people, ``isorun matrix schema`` for editors.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from isorun.parity import DEFAULT_TOLERANCES, Tolerance
from isorun.parity.samples import MASKS
from isorun_matrix.spec.backends import BackendName, Entry, Environment
from isorun_matrix.spec.fields import Count, Name, Seconds, Strict
from isorun_matrix.spec.models import Model
from isorun_matrix.spec.shapes import Shape

DEFAULT_SECONDS = 3.0


class Limits(Strict):
    """Limits of parity; an omitted limit keeps the default of its precision. See ``isorun.parity``."""

    max_rel: float | None = Field(default=None, ge=0, lt=1)
    rms: float | None = Field(default=None, ge=0, lt=1)
    cosine: float | None = Field(default=None, gt=0, le=1)
    max_abs: float | None = Field(default=None, ge=0)
    argmax: float | None = Field(default=None, ge=0, le=1)


class Reference(Strict):
    """What every cell is compared with."""

    backend: BackendName = "reference"
    precision: str = "fp64"
    time_limit: Seconds = Field(default=1800.0, description="seconds per model and shape")


class Spec(Strict):
    """A comparison of backends."""

    models: dict[Name, Model] = Field(min_length=1)
    backends: list[Entry] = Field(min_length=1)
    environments: dict[Name, Environment] = Field(
        default_factory=dict, description="isolated environments for backends, created where they are missing"
    )
    shapes: list[Shape] | None = Field(default=None, min_length=1, description="of models without shapes")
    masks: list[Literal[tuple(MASKS)]] = Field(  # type: ignore[valid-type]
        default=["right"], description="kinds of padding on which parity is checked, in addition to the timed feeds"
    )
    feeds: Count = Field(default=4, description="how many different feeds are timed, in turn")
    seed: int = Field(default=0, ge=0, description="of the feeds")
    reference: Reference = Reference()
    warmup: int = Field(default=10, ge=0, description="runs before the measured ones")
    repetitions: Count | None = Field(default=None, description="measured runs of a cell, instead of seconds")
    seconds: Seconds | None = Field(default=None, description="how long a cell is measured; 3 by default")
    time_limit: Seconds = Field(default=300.0, description="seconds after which a cell is stopped")
    tolerances: dict[str, Limits] = Field(default_factory=dict, description="limits of parity by precision")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.repetitions is not None and self.seconds is not None:
            raise ValueError("repetitions and seconds exclude each other. Remove one of them.")
        if (self.time_of_a_cell or 0) >= self.time_limit:
            raise ValueError(
                f"seconds ({self.time_of_a_cell:g}) must be less than time_limit ({self.time_limit:g}), which counts "
                "from the start of a cell's process"
            )
        labels = [entry.label for entry in self.backends]
        if twice := _repeated(labels):
            raise ValueError(f"two backends have the label {twice!r}. Give one of them another label.")
        for name, model in self.models.items():
            shapes = self.shapes_of(name)
            if not shapes:
                raise ValueError(f"model {name!r} has no shapes. Add shapes to the model or to the spec.")
            if twice := _repeated([shape.name for shape in shapes]):
                raise ValueError(
                    f"two shapes of model {name!r} have the name {twice!r}. Give one of them another name."
                )
            if model.texts is not None and (bad := [s.name for s in shapes if s.sequence is None]):
                raise ValueError(f"model {name!r} has texts, so its shape {bad[0]} needs a sequence")
            if model.texts is not None and (bad := [s.name for s in shapes if s.lengths != "full"]):
                raise ValueError(
                    f"model {name!r} has texts, which determine the lengths. Remove lengths from its shape {bad[0]}."
                )
        for precision in dict.fromkeys(precision for entry in self.backends for precision in entry.precisions):
            self.tolerance(precision)
        return self

    @property
    def time_of_a_cell(self) -> float | None:
        """How long a cell is measured, in seconds; ``None`` if ``repetitions`` is set."""
        return None if self.repetitions is not None else self.seconds or DEFAULT_SECONDS

    @property
    def backends_here(self) -> list[str]:
        """The distinct names of the backends that run in this environment, the reference's first."""
        here = [entry.name for entry in self.backends if entry.environment is None]
        return list(dict.fromkeys([self.reference.backend, *here]))

    @property
    def isolated(self) -> dict[str, list[str]]:
        """The environments that backends run in, each with the names of those backends."""
        found: dict[str, list[str]] = {}
        for entry in self.backends:
            if entry.environment is not None:
                found.setdefault(entry.environment, []).append(entry.name)
        return found

    def shapes_of(self, model: str) -> list[Shape]:
        """The shapes that a model runs at."""
        return self.models[model].shapes or self.shapes or []

    def tolerance(self, precision: str) -> Tolerance:
        """The limits of parity at a precision.

        Raises:
            ValueError: it has no default, and the spec lacks a required limit.
        """
        default = DEFAULT_TOLERANCES.get(precision)
        given = self.tolerances.get(precision, Limits()).model_dump(exclude_none=True)
        if default is None and not {"max_rel", "rms", "cosine"} <= given.keys():
            raise ValueError(
                f"tolerances has no default for {precision!r} (only for {', '.join(DEFAULT_TOLERANCES)}). "
                f"Add max_rel, rms and cosine to tolerances.{precision}."
            )
        return Tolerance(**given) if default is None else Tolerance(**{**vars(default), **given})


def _repeated(names: list[str]) -> str | None:
    return next((name for index, name in enumerate(names) if name in names[:index]), None)
