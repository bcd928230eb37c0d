"""What vectors must keep when cells compute them."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from isorun.compilation import corpus
from isorun.compilation.options import QUALITY
from isorun.errors import InvalidArgument
from isorun.quality import FEWEST, K, labels
from isorun.quality.labels import Labels
from isorun_matrix.spec.field_types import Count, OrString
from isorun_matrix.spec.models import Texts, existing_file


def _read_labels(value: Any, info: ValidationInfo) -> Any:
    try:
        if isinstance(value, str):
            path = existing_file(value, info)
            lines = labels.objects(path)
            labels.parse(lines, str(path))
            return [*lines.values()]
        if isinstance(value, list):
            labels_of(value)
    except InvalidArgument as error:
        raise ValueError(str(error)) from error
    return value


def labels_of(items: list[Any]) -> Labels:
    """The labels of a spec. Raises ``InvalidArgument`` if they are no labels, of several kinds, or too few."""
    return labels.parse({f"item {number}": item for number, item in enumerate(items, start=1)}, "labels")


LabelItems = Annotated[
    list[dict[str, Any]],
    BeforeValidator(_read_labels),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": FEWEST}],
            "description": "a file with a JSON object on each line, or these objects: the task's own measure",
        }
    ),
]


class Quality(OrString):
    """What vectors must keep when a cell computes them, compared with the model's own file in fp32: the nearest
    neighbours of texts, or the score by labels. A string is ``texts``."""

    texts: Texts | None = Field(
        default=None, description="texts, or a file with one on each line; each is searched for among the others"
    )
    labels: LabelItems | None = Field(
        default=None, description="labelled pairs, queries or classes, or a file with one on each line; not with texts"
    )
    k: Count = Field(default=K, description="how many nearest neighbours of a text count")
    minimum: float = Field(
        default=QUALITY, ge=0, le=1, description="minimum share that is kept, at the low end of its 95 % interval"
    )

    @field_validator("texts")
    @classmethod
    def _enough(cls, value: list[str] | None) -> list[str] | None:
        if value is None:
            return None
        distinct = list(dict.fromkeys(value))
        if len(distinct) < FEWEST:
            raise ValueError(f"expected {FEWEST} or more different texts, got {len(distinct)}")
        return distinct

    @property
    def searched(self) -> list[str]:
        """The texts whose neighbours are compared: by default isorun's that no model is calibrated on."""
        return self.texts or list(
            dict.fromkeys(text for texts in corpus.texts(held_out=True).values() for text in texts)
        )

    @model_validator(mode="after")
    def _one_measure(self) -> Self:
        if self.labels is not None and self.model_fields_set & {"texts", "k"} and (self.texts or self.k != K):
            raise ValueError("labels replace neighbours. Remove texts and k, or labels.")
        if self.labels is None and self.k > (most := (len(self.searched) - 1) // 2):
            raise ValueError(
                f"k must be at most {most}, half of the other texts, got {self.k}: of k neighbours out of n texts, any "
                "vectors keep the share k / n"
            )
        return self
