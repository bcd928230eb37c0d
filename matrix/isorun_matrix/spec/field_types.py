"""Types that all parts of a spec use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo
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
Seconds = Annotated[float, Field(gt=0, le=1e7)]  # above it, timers overflow


def _one_or_many(value: Any) -> str:
    return "<many>" if isinstance(value, list) else "<one>"


ONE_OR_MANY = Discriminator(_one_or_many)
"""Chooses between ``Annotated[item, ONE]`` and ``Annotated[list[item], MANY]``."""

# Angle brackets distinguish tags from keys in the place of an error.
ONE, MANY = Tag("<one>"), Tag("<many>")


class Strict(BaseModel):
    """No unknown keys, no conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def located(value: str, info: ValidationInfo) -> Path:
    """A path in a spec; relative paths start at the spec's folder.

    Raises:
        ValueError: the system cannot look it up.
    """
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
    found: Path = (info.context or {}).get("folder", Path.cwd())
    return found


def or_string(schema: JsonSchemaValue, pattern: str | None) -> JsonSchemaValue:
    """The schema of a value that may also be a string, optionally with a pattern."""
    return {"anyOf": [{"type": "string"} | ({"pattern": pattern} if pattern else {}), schema]}
