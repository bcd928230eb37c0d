"""The backends that are compared, and the environments that some of them run in."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from isorun_matrix.spec.base import Count, Name, Strict, or_string


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
        return or_string(handler(core), None)
