"""The backends that are compared, and the environments that some of them run in."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, GetJsonSchemaHandler, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from isorun.errors import IsorunError
from isorun.isolation import environments
from isorun.system.threads import MOST
from isorun_matrix.spec.fields import Count, Name, Strict, folder, located, or_string

BackendName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z0-9._-]+)?$", description="such as ort-cpu or ort-ep:NAME"),
]


class Environment(Strict):
    """An isolated environment, which a run creates if it is missing. See ``docs/environments.md``."""

    python: str | None = Field(
        default=None, description="a version or an interpreter's path; by default the version that runs isorun"
    )
    install: list[str] = Field(default_factory=list, description="requirements or paths, as given to pip")

    @field_validator("python", mode="before")
    @classmethod
    def _version_or_path(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, float):  # 3.10 would have become 3.1
            raise ValueError(f'YAML reads the version as the number {value}. Put it in quotes, such as "3.11".')  # noqa: TRY004
        return str(located(value, info)) if isinstance(value, str) and "/" in value else value

    @field_validator("install")
    @classmethod
    def _located(cls, value: list[str], info: ValidationInfo) -> list[str]:
        try:
            return [environments.requirement(each, folder(info)) for each in value]
        except (IsorunError, OSError) as error:  # such as a name that is too long
            raise ValueError(str(error)) from error


class Entry(Strict):
    """A backend and its settings. A name alone means that backend in fp32."""

    name: BackendName
    environment: Name | None = Field(
        default=None, description="the isolated environment that it runs in: declared in the spec, or existing"
    )
    label: Name = Field(default="", description="its name in cells; required if a backend is listed twice")
    precisions: list[Name] = Field(default=["fp32"], min_length=1)
    threads: Count | None = Field(
        default=None,
        le=MOST,
        description="all usable cores by default; for backends that support it",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="the backend's own settings")

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.label:
            label = self.name if self.environment is None else f"{self.name}@{self.environment}"
            object.__setattr__(self, "label", label)
        if len(set(self.precisions)) < len(self.precisions):
            raise ValueError("a precision is listed twice")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return or_string(handler(core), None)
