"""What a search must keep when cells compute its vectors."""

from __future__ import annotations

from pydantic import Field, field_validator

from isorun.compilation.options import QUALITY
from isorun.quality import FEWEST, K
from isorun_matrix.spec.field_types import Count, OrString
from isorun_matrix.spec.models import Texts


class Quality(OrString):
    """What a search must keep of its results when a cell computes the vectors, compared with the model's own file in
    fp32. A string is ``texts``."""

    texts: Texts | None = Field(
        default=None, description="texts, or a file with one on each line; each is searched for among the others"
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
