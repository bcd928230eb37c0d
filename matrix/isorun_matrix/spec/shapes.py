"""The shapes of feeds, and how many of their tokens are real."""

from __future__ import annotations

import re
import reprlib
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from isorun_matrix.spec.field_types import Count, Name, OneOrMany, OrString, Strict


class Lognormal(Strict):
    """Lengths like those of sentences: many short, a few long."""

    distribution: Literal["lognormal"] = Field(description="which one")
    median: float = Field(gt=0, description="of the distribution before it is clipped to min and max, in tokens")
    sigma: float = Field(default=0.6, gt=0, description="the standard deviation of the logarithm")
    min: Count = Field(default=1, description="the least real tokens of a row")
    max: Count | None = Field(default=None, description="the most; the sequence by default")
    seed: int = Field(default=0, ge=0, description="of the lengths")


class Uniform(Strict):
    """All lengths between min and max are equally likely."""

    distribution: Literal["uniform"] = Field(description="which one")
    min: Count = Field(default=1, description="the least real tokens of a row")
    max: Count | None = Field(default=None, description="the most; the sequence by default")
    seed: int = Field(default=0, ge=0, description="of the lengths")


def _kind_of_lengths(value: Any) -> str | None:
    if isinstance(value, str):
        return "<full>"
    if isinstance(value, list):
        return "<list>"
    named = value.get("distribution") if isinstance(value, dict) else getattr(value, "distribution", None)
    return f"<{named}>" if named in ("lognormal", "uniform") else None


# Angle brackets distinguish tags from keys in the place of an error.
Lengths = Annotated[
    Annotated[Literal["full"], Tag("<full>")]
    | Annotated[list[Count], Field(min_length=1), Tag("<list>")]
    | Annotated[Lognormal, Tag("<lognormal>")]
    | Annotated[Uniform, Tag("<uniform>")],
    Discriminator(
        _kind_of_lengths,
        custom_error_type="lengths",
        custom_error_message="must be full, a list of lengths, or a distribution (lognormal or uniform)",
    ),
]


class Shape(OrString):
    """One shape of feeds. ``8x128`` means a batch of 8 and a sequence of 128.

    A list of batches or of sequences is one shape for each combination.
    """

    _PATTERN: ClassVar[str] = r"^([0-9]{1,9})(?:x([0-9]{1,9}))?$"

    batch: OneOrMany[Count] = Field(description="rows; a list is one shape for each item")
    sequence: OneOrMany[Count] | None = Field(
        default=None, description="tokens in a row, padding included; a list is one shape for each item"
    )
    lengths: Lengths = Field(
        default="full", description="real tokens in each row; a list is assigned to the rows in turn"
    )
    dims: dict[str, Count] = Field(default_factory=dict, description="sizes of other symbolic dimensions, by name")
    name: Name = Field(default="", description="required if two shapes would have the same name; 8x128 by default")

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        if isinstance(value, str | int | float):  # a number: YAML reads 0x8 as hexadecimal
            if not (match := re.fullmatch(cls._PATTERN, str(value))) or not isinstance(value, str):
                raise ValueError(
                    f"a shape must be BATCHxSEQUENCE, such as 8x128, or a mapping, got {reprlib.repr(value)}"
                )
            batch, sequence = match.groups()
            return {"batch": int(batch)} | ({} if sequence is None else {"sequence": int(sequence)})
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.batch, list) or isinstance(self.sequence, list):
            self.each()
            return self
        if not self.name:
            kind = "" if self.lengths == "full" else f"-{getattr(self.lengths, 'distribution', 'lengths')}"
            object.__setattr__(self, "name", f"{_size(self.batch, self.sequence)}{kind}")
        if self.lengths == "full":
            return self
        if self.sequence is None:
            raise ValueError("lengths requires a sequence")
        lengths = self.lengths
        ends = lengths if isinstance(lengths, list) else [lengths.min, lengths.max or self.sequence]
        if max(ends) > self.sequence:
            raise ValueError(f"a length of {max(ends)} exceeds the sequence of {self.sequence}")
        if not isinstance(lengths, list) and ends[0] > ends[1]:
            raise ValueError(f"min ({ends[0]}) must not exceed max ({ends[1]})")
        return self

    def each(self) -> list[Shape]:
        """This shape, or the shapes that its lists stand for."""
        if not (isinstance(self.batch, list) or isinstance(self.sequence, list)):
            return [self]
        batches = self.batch if isinstance(self.batch, list) else [self.batch]
        sequences = self.sequence if isinstance(self.sequence, list) else [self.sequence]
        shapes = []
        for batch in batches:
            for sequence in sequences:
                common = self.model_dump(exclude={"batch", "sequence", "name"}, exclude_defaults=True)
                if self.name:
                    common["name"] = f"{_size(batch, sequence)}-{self.name}"
                shapes.append(Shape(batch=batch, sequence=sequence, **common))
        return shapes


Shapes = Annotated[
    list[Shape],
    Field(min_length=1),
    AfterValidator(lambda shapes: [single for shape in shapes for single in shape.each()]),
]
"""Shapes of one size each: those with lists of sizes are replaced by the shapes that they stand for."""


def _size(batch: int, sequence: int | None) -> str:
    """The name of a size: ``8x128``, or ``8`` without a sequence."""
    return f"{batch}" if sequence is None else f"{batch}x{sequence}"
