"""The backends that are compared, and the environments that some of them run in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from isorun.errors import IsorunError
from isorun.isolation import environments
from isorun.system.threads import MOST
from isorun_matrix.spec.field_types import Name, OneOrMany, OrString, Strict, folder, located

BackendName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z0-9._-]+)?$", description="such as ort-cpu or ort-ep:NAME"),
]

Threads = OneOrMany[Annotated[int, Field(ge=1, le=MOST)]]


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
            return [environments.requirement(requirement, folder(info)) for requirement in value]
        except (IsorunError, OSError) as error:  # such as a name that is too long
            raise ValueError(str(error)) from error


@dataclass(frozen=True)
class Variant:
    """A backend with one number of threads and one set of options."""

    name: str
    environment: str | None
    label: str
    precisions: Sequence[str]
    device: str | None
    threads: int | None
    options: Mapping[str, Any]
    shapes: Sequence[str] | None


class Entry(OrString):
    """A backend and its settings. A name alone means that backend with the spec's defaults.

    A list of ``threads`` or of ``options`` is one backend for each item, whose label says which.
    """

    name: BackendName
    environment: Name | None = Field(
        default=None, description="the isolated environment that it runs in: declared in the spec, or existing"
    )
    label: Name = Field(default="", description="its name in cells; required if a backend is listed twice")
    precisions: list[Name] | None = Field(default=None, min_length=1, description="instead of the spec's")
    device: str | None = Field(default=None, description="one of the backend's devices; by default its first")
    threads: Threads | None = Field(
        default=None, description="all usable cores by default; for backends that support it; or a list"
    )
    options: OneOrMany[dict[str, Any]] = Field(
        default_factory=dict, description="the backend's own settings; a list of mappings for one backend of each"
    )
    shapes: list[Name] | None = Field(
        default=None, min_length=1, description="names of the shapes that it runs at; all by default"
    )
    machines: list[Name] | None = Field(
        default=None, min_length=1, description="names of the machines that it runs on; all by default"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.label:
            label = self.name if self.environment is None else f"{self.name}@{self.environment}"
            object.__setattr__(self, "label", label)
        for name in ("precisions", "threads", "options", "shapes", "machines"):
            value = getattr(self, name)
            if isinstance(value, list) and any(item in value[:index] for index, item in enumerate(value)):
                raise ValueError(f"{name} has the same item twice")
        return self

    def variants(self, precisions: Sequence[str], device: str | None, threads: int | list[int] | None) -> list[Variant]:
        """The backend once for each of its settings, with the spec's defaults for what it leaves out."""
        threads = threads if self.threads is None else self.threads
        options = self.options
        variants = []
        for count in threads if isinstance(threads, list) else [threads]:
            for index, chosen in enumerate(options if isinstance(options, list) else [options]):
                parts = [self.label]
                if isinstance(threads, list):
                    parts.append(f"t{count}")
                if isinstance(options, list):
                    parts.append(_named(chosen, index))
                label = ".".join(parts)
                settings = (self.precisions or precisions, self.device or device, count, chosen, self.shapes)
                variants.append(Variant(self.name, self.environment, label, *settings))
        return variants


def _named(options: Mapping[str, Any], index: int) -> str:
    """A short name for one of several sets of options: ``cuda_graphs-8``, or the number of the set."""
    text = "_".join(f"{key}-{value}" for key, value in options.items())
    return text if re.fullmatch(r"[A-Za-z0-9._-]{1,40}", text) else str(index + 1)
