"""What every part of a spec is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo
from pydantic.json_schema import JsonSchemaValue

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
Seconds = Annotated[float, Field(gt=0, le=1e7)]  # beyond that, timers of the system overflow


class Strict(BaseModel):
    """No unknown key, no conversion of one type to another."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def located(value: str, info: ValidationInfo) -> Path:
    """A path of a spec: relative ones start at the spec's folder.

    Raises:
        ValueError: the system cannot tell whether it is there.
    """
    path = folder(info) / expanded(value)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # what needs it says so
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    return path


def folder(info: ValidationInfo) -> Path:
    """The spec's folder."""
    found: Path = (info.context or {}).get("folder", Path.cwd())
    return found


def or_string(schema: JsonSchemaValue, pattern: str | None) -> JsonSchemaValue:
    """The schema of what may also be written as a string, of a pattern where one is given."""
    return {"anyOf": [{"type": "string"} | ({"pattern": pattern} if pattern else {}), schema]}
