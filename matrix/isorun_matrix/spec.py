"""What a matrix compares: the keys of a spec, their defaults, and what they may hold.

A spec names models, backends and shapes; every model runs on every backend, at every precision of that backend
and every shape of that model. ``docs/matrix.md`` describes the keys for people, ``isorun matrix schema`` for
editors. Files are read in :mod:`isorun_matrix.specfile`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from isorun.parity import DEFAULT_TOLERANCES, Tolerance
from isorun.samples import MASKS

Name = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="letters, digits, dots, dashes, underscores")
]
Count = Annotated[int, Field(ge=1)]
DEFAULT_SECONDS = 3.0
_SHORT_SHAPE = r"^(\d+)(?:x(\d+))?$"


class Strict(BaseModel):
    """No unknown key, no conversion of one type to another."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Lognormal(Strict):
    """Lengths as sentences have them: many short, a few long."""

    distribution: Literal["lognormal"]
    median: float = Field(gt=0, description="of the distribution before it is cut to min and max, in tokens")
    sigma: float = Field(default=0.6, gt=0, description="the standard deviation of the logarithm")
    min: Count = 1
    max: Count | None = Field(default=None, description="the sequence, unless it is less")
    seed: int = 0


class Uniform(Strict):
    """Every length between two ends alike."""

    distribution: Literal["uniform"]
    min: Count = 1
    max: Count | None = Field(default=None, description="the sequence, unless it is less")
    seed: int = 0


def _kind_of_lengths(value: Any) -> str | None:
    if isinstance(value, str):
        return "<full>"
    if isinstance(value, list):
        return "<list>"
    named = value.get("distribution") if isinstance(value, dict) else getattr(value, "distribution", None)
    return f"<{named}>" if named in ("lognormal", "uniform") else None


# Tags are in angle brackets so that they can be told from keys in an error's place.
Lengths = Annotated[
    Annotated[Literal["full"], Tag("<full>")]
    | Annotated[list[Count], Field(min_length=1), Tag("<list>")]
    | Annotated[Lognormal, Tag("<lognormal>")]
    | Annotated[Uniform, Tag("<uniform>")],
    Discriminator(
        _kind_of_lengths,
        custom_error_type="lengths",
        custom_error_message="should be full, a list of lengths, or a distribution (lognormal or uniform)",
    ),
]


class Shape(Strict):
    """One shape of feeds. ``8x128`` is short for a batch of 8 and a sequence of 128."""

    batch: Count
    sequence: Count | None = None
    lengths: Lengths = Field(
        default="full", description="real tokens in each row; a list is dealt out to the rows in turn"
    )
    dims: dict[str, Count] = Field(default_factory=dict, description="sizes of other symbolic dimensions, by name")
    name: Name = ""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        if isinstance(value, str):
            if not (match := re.match(_SHORT_SHAPE, value)):
                raise ValueError(f"a shape is BATCHxSEQUENCE, such as 8x128, or a mapping; {value!r} is neither")
            batch, sequence = match.groups()
            return {"batch": int(batch)} | ({} if sequence is None else {"sequence": int(sequence)})
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.name:
            sequence = "" if self.sequence is None else f"x{self.sequence}"
            object.__setattr__(self, "name", f"{self.batch}{sequence}")
        if self.lengths == "full":
            return self
        if self.sequence is None:
            raise ValueError("lengths needs a sequence to be padded to")
        lengths = self.lengths
        ends = lengths if isinstance(lengths, list) else [lengths.min, lengths.max or self.sequence]
        if max(ends) > self.sequence:
            raise ValueError(f"a length of {max(ends)} does not fit a sequence of {self.sequence}")
        if not isinstance(lengths, list) and ends[0] > ends[1]:
            raise ValueError(f"the least length, {ends[0]}, is above the greatest, {ends[1]}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return _or_string(handler(core), _SHORT_SHAPE)


def _read_texts(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    path = _located(value, info)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text ({error})") from error
    return [line.strip() for line in lines if line.strip()]


def _located(value: str, info: ValidationInfo) -> Path:
    """A path of a spec: relative ones start at the spec's folder."""
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return folder / Path(value).expanduser()


Texts = Annotated[
    list[str],
    Field(min_length=1),
    BeforeValidator(_read_texts),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
            "description": "a file with a text on each line, or the texts: real tokens instead of random ones",
        }
    ),
]


class Model(Strict):
    """A model, from exactly one of ``path``, ``checkpoint`` and ``preset``."""

    path: str | None = Field(default=None, description="an ONNX file")
    checkpoint: str | None = Field(
        default=None, description="a known name such as all-MiniLM-L6-v2, a hub id, or a folder"
    )
    preset: str | None = Field(default=None, description="a random model: bert-3l, bert-6l, bert-base, bert-large")
    seed: int | None = Field(default=None, ge=0, description="of a preset's weights")
    texts: Texts | None = None
    shapes: list[Shape] | None = Field(default=None, min_length=1, description="instead of the spec's shapes")

    @field_validator("path")
    @classmethod
    def _file(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        path = _located(value, info)
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        return str(path)

    @field_validator("checkpoint")
    @classmethod
    def _folder(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        path = _located(value, info)
        if path.is_dir():
            return str(path)
        if value.startswith((".", "/", "~")):
            raise ValueError(f"there is no folder {path}")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [key for key in ("path", "checkpoint", "preset") if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a model has one of path, checkpoint and preset; this has {' and '.join(given) or 'none of them'}"
            )
        if self.preset is None and self.seed is not None:
            raise ValueError("seed goes with a preset: other models have weights of their own")
        if self.preset is not None and self.texts is not None:
            raise ValueError("texts need a tokenizer, and a preset has none")
        return self


class Entry(Strict):
    """A backend and what is asked of it. A name alone is short for that backend at fp32."""

    name: Name
    label: Name = Field(default="", description="what cells call it, where a backend is listed more than once")
    precisions: list[str] = Field(default=["fp32"], min_length=1)
    threads: Count | None = Field(
        default=None, description="all the cores that may be used, unless it is given; of backends that can set it"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="the backend's own settings")

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.label:
            object.__setattr__(self, "label", self.name)
        if len(set(self.precisions)) < len(self.precisions):
            raise ValueError("a precision is listed twice")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return _or_string(handler(core), None)


def _or_string(schema: JsonSchemaValue, pattern: str | None) -> JsonSchemaValue:
    return {"anyOf": [{"type": "string"} | ({"pattern": pattern} if pattern else {}), schema]}


class Limits(Strict):
    """Limits of parity; what is left out keeps the default of its precision. See ``isorun.parity``."""

    max_rel: float | None = Field(default=None, ge=0, lt=1)
    rms: float | None = Field(default=None, ge=0, lt=1)
    cosine: float | None = Field(default=None, gt=0, le=1)
    max_abs: float | None = Field(default=None, ge=0)
    argmax: float | None = Field(default=None, ge=0, le=1)


class Reference(Strict):
    """What every cell is compared with."""

    backend: Name = "reference"
    precision: str = "fp64"
    time_limit: float = Field(default=1800.0, gt=0, description="seconds for the outputs of one model and shape")


class Spec(Strict):
    """A comparison of backends."""

    models: dict[Name, Model] = Field(min_length=1)
    backends: list[Entry] = Field(min_length=1)
    shapes: list[Shape] | None = Field(default=None, min_length=1, description="of models that have none of their own")
    masks: list[Literal[tuple(MASKS)]] = Field(  # type: ignore[valid-type]
        default=["right"], description="kinds of padding that parity is checked on beside the timed feeds"
    )
    feeds: Count = Field(default=4, description="how many different feeds the runs of a cell take in turn")
    seed: int = Field(default=0, ge=0, description="of the feeds")
    reference: Reference = Reference()
    warmup: int = Field(default=10, ge=0, description="runs before the measured ones")
    repetitions: Count | None = Field(default=None, description="measured runs of a cell, instead of seconds")
    seconds: float | None = Field(default=None, gt=0, description="of measured runs in a cell; 3 unless given")
    time_limit: float = Field(default=300.0, gt=0, description="seconds after which a cell is stopped")
    tolerances: dict[str, Limits] = Field(default_factory=dict, description="limits of parity by precision")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.repetitions is not None and self.seconds is not None:
            raise ValueError("repetitions and seconds are two ways to say how long a cell runs; give one of them")
        labels = [entry.label for entry in self.backends]
        if twice := _repeated(labels):
            raise ValueError(f"two backends are called {twice!r}; give one of them a label")
        for name, model in self.models.items():
            shapes = self.shapes_of(name)
            if not shapes:
                raise ValueError(f"model {name!r} has no shapes; give it some, or the spec")
            if twice := _repeated([shape.name for shape in shapes]):
                raise ValueError(f"two shapes of model {name!r} are called {twice!r}; give one of them a name")
            if model.texts is not None and (bad := [s.name for s in shapes if s.sequence is None]):
                raise ValueError(f"model {name!r} has texts; its shape {bad[0]} needs a sequence to pad them to")
            if model.texts is not None and (bad := [s.name for s in shapes if s.lengths != "full"]):
                raise ValueError(
                    f"model {name!r} has texts, which have lengths of their own; shape {bad[0]} sets others"
                )
        for precision in dict.fromkeys(precision for entry in self.backends for precision in entry.precisions):
            self.tolerance(precision)
        return self

    @property
    def time_of_a_cell(self) -> float | None:
        """Seconds of measured runs in a cell; ``None`` where ``repetitions`` counts them."""
        return None if self.repetitions is not None else self.seconds or DEFAULT_SECONDS

    def shapes_of(self, model: str) -> list[Shape]:
        """The shapes that a model runs at."""
        return self.models[model].shapes or self.shapes or []

    def tolerance(self, precision: str) -> Tolerance:
        """The limits of parity at a precision.

        Raises:
            ValueError: it has no default and the spec does not give all that is needed.
        """
        default = DEFAULT_TOLERANCES.get(precision)
        given = self.tolerances.get(precision, Limits()).model_dump(exclude_none=True)
        if default is None and not {"max_rel", "rms", "cosine"} <= given.keys():
            raise ValueError(
                f"tolerances has no default for {precision!r} (only for {', '.join(DEFAULT_TOLERANCES)}); "
                f"give tolerances.{precision} a max_rel, an rms and a cosine"
            )
        return Tolerance(**given) if default is None else Tolerance(**{**vars(default), **given})


def _repeated(names: list[str]) -> str | None:
    return next((name for index, name in enumerate(names) if name in names[:index]), None)
