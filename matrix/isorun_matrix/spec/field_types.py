"""Types that all parts of a spec use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from isorun.system.cache import expanded

Name = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,  # the name of a folder of results
        description="letters, digits, dots, dashes, underscores",
    ),
]
Count = Annotated[int, Field(ge=1)]
Item = TypeVar("Item")
Seconds = Annotated[float, Field(gt=0, le=1e7)]  # above it, timers overflow


def _one_or_many(value: Any) -> str:
    return "<many>" if isinstance(value, list) else "<one>"


# Angle brackets distinguish tags from keys in the place of an error.
OneOrMany = Annotated[
    Annotated[Item, Tag("<one>")] | Annotated[list[Item], Field(min_length=1), Tag("<many>")],
    Discriminator(_one_or_many),
]
"""An item, or a list of at least one."""


class Strict(BaseModel):
    """No unknown keys, no conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class OrString(Strict):
    """A mapping that may also be written as a string: by default the value of its first key."""

    _PATTERN: ClassVar[str | None] = None

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return {next(iter(cls.model_fields)): value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        pattern = {"pattern": cls._PATTERN} if cls._PATTERN else {}
        return {"anyOf": [{"type": "string"} | pattern, handler(core)]}


def located(value: str, info: ValidationInfo) -> Path:
    """A path in a spec; relative paths start at the spec's folder. Raises ``ValueError`` if the system cannot look it
    up."""
    path = folder(info) / expanded(value)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # reported where the path is used
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    return path


def folder(info: ValidationInfo) -> Path:
    """The spec's folder."""
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return folder
