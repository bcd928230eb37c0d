"""Models, and the texts that they are fed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator

from isorun.errors import did_you_mean, near_file
from isorun.models import presets
from isorun.system import text_files
from isorun_matrix.spec.field_types import Name, Strict, located
from isorun_matrix.spec.shapes import Shapes


def existing_file(value: str, info: ValidationInfo) -> Path:
    """The path of a file in a spec. Raises ``ValueError`` if there is none."""
    path = located(value, info)
    if not path.is_file():
        raise ValueError(f"file not found: {path}{near_file(path)}")
    return path


def _read_texts(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str):
        return value
    path = existing_file(value, info)
    try:
        return [line.strip() for line in text_files.lines(path) if line.strip()]
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error})") from error


Texts = Annotated[
    list[str],
    Field(min_length=1),
    BeforeValidator(_read_texts),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
            "description": "texts, or a file with one on each line: real tokens instead of random ones",
        }
    ),
]


def _onnx_file(value: str, info: ValidationInfo) -> str:
    path = located(value, info)
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Use checkpoint for the folder of a checkpoint.")
    return str(existing_file(value, info))


def _checkpoint(value: str, info: ValidationInfo) -> str:
    path = located(value, info)
    if path.is_dir():
        return str(path)
    if path.is_file():
        raise ValueError(f"{path} is a file. Use path for an ONNX file.")
    if value.startswith((".", "/", "~")):
        raise ValueError(f"folder not found: {path}")
    return value


def _known_preset(value: str) -> str:
    if value not in presets.NAMES:
        raise ValueError(f"unknown preset {value!r}{did_you_mean(value, presets.NAMES)}")
    return value


class Model(Strict):
    """A model, from exactly one of ``path``, ``checkpoint`` and ``preset``."""

    path: Annotated[str, AfterValidator(_onnx_file)] | None = Field(default=None, description="an ONNX file")
    checkpoint: Annotated[str, AfterValidator(_checkpoint)] | None = Field(
        default=None, description="a known name such as all-MiniLM-L6-v2, a hub id, or a folder"
    )
    preset: Annotated[str, AfterValidator(_known_preset)] | None = Field(
        default=None, description="a model with random weights", json_schema_extra={"examples": [*presets.NAMES]}
    )
    seed: int | None = Field(default=None, ge=0, description="of a preset's weights")
    outputs: list[str] | None = Field(default=None, min_length=1, description="the required outputs, instead of all")
    texts: Texts | None = Field(default=None, description="texts, or a file with one on each line, instead of ids")
    shapes: Shapes | None = Field(default=None, description="instead of the spec's shapes")
    machines: list[Name] | None = Field(
        default=None, min_length=1, description="names of the machines that it runs on; all by default"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        sources = [key for key in ("path", "checkpoint", "preset") if getattr(self, key) is not None]
        if len(sources) != 1:
            raise ValueError(
                f"a model needs exactly one of path, checkpoint and preset, got {' and '.join(sources) or 'none'}"
            )
        if self.preset is None and self.seed is not None:
            raise ValueError("seed needs a preset: other models have weights. Remove it.")
        if self.preset is not None and self.texts is not None:
            raise ValueError("texts need a tokenizer, which a preset does not have. Use a checkpoint.")
        return self
