"""The files of a run as they are read back: parsed and checked, or an error that names the file.

A report reads what another version or another machine wrote, or what someone edited. The models below name every member
that a report or a comparison uses; members that they do not name are passed on.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from isorun.errors import SpecError
from isorun_matrix.results.layout import JOB, RESULT, RUN
from isorun_matrix.text import cut

SCHEMA = 1
STATUSES = {
    "ok": "ran, and its outputs are right",
    "parity-failed": "ran, and its outputs are off by more than the tolerance, or not finite",
    "unavailable": "the backend cannot do here what is asked",
    "unsupported": "the backend lacks an operator of the model",
    "error": "isorun or the runtime reported an error",
    "crashed": "the process, or its worker in an environment, died of a signal",
    "timeout": "it was stopped at its time limit",
    "skipped": "its model, its reference or its environment could not be had",
    "pending": "it has not run yet",
}
"""What became of a cell."""

_DEPTH = 64  # of nested data: deeper is damage, and would end what walks it in a RecursionError
_SHOWN = 200  # characters of an error about a file's content

Size = Annotated[float, Field(ge=0)]
Time = Annotated[float, Field(gt=0)]
Versions = dict[str, str]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _OnDevice(_Part):
    samples: int = Field(ge=1)
    min: Size
    mean: Size
    std: Size | None
    p50: Size | None
    p90: Size | None
    p95: Size | None
    p99: Size | None
    max: Size
    notes: list[str]


class _Latency(_OnDevice):
    p50: Time | None  # ratios are taken of these
    p50_interval: Annotated[list[Time], Field(min_length=2, max_length=2)] | None = None


class _Spread(_Part):
    p5: Size
    p25: Size
    p50: Size
    p75: Size
    p95: Size


class _Throughput(_Part):
    requests_per_s: Size | None
    rows_per_s: Size | None
    tokens_per_s: Size | None


class _Memory(_Part):
    before_load: Size | None
    peak: Size | None
    gpu: Size | None = None


class _Limits(_Part):
    max_rel: float
    rms: float
    cosine: float


class _Parity(_Part):
    verdict: Literal["pass", "fail"]
    summary: str | None
    max_abs: float | None
    max_rel: float | None
    rms: float | None
    cosine: float | None
    argmax: float | None
    tolerance: _Limits


class _Provenance(_Part):
    device: str
    threads: int | None
    precision: str
    operators: dict[str, dict[str, int]]
    fused: dict[str, int]
    dialect: str
    cache: str
    versions: Versions
    fingerprint: str


_FIGURES = ("parity", "latency_ms", "spread_ms", "throughput", "load_ms", "first_run_ms", "memory_mib", "provenance")


class _Planned(_Part):
    """A cell in ``run.json``."""

    key: str | None
    id: str
    model: str
    shape: str
    backend: str
    environment: str | None = None
    label: str
    precision: str
    batch: int
    sequence: int | None
    options: dict[str, Any]
    threads: int | None
    status: Literal[tuple(STATUSES)]  # type: ignore[valid-type]
    reason: str | None
    remedy: str | None
    log: str | None
    notes: list[str] | None = None
    kept: str | None = None
    load_average: Annotated[list[Size], Field(min_length=1)] | None = None
    waited: Size | None = None
    warmup_runs: int | None
    parity: _Parity | None
    latency_ms: _Latency | None
    device_ms: _OnDevice | None = None
    spread_ms: _Spread | None
    throughput: _Throughput | None
    load_ms: Size | None
    first_run_ms: Size | None
    memory_mib: _Memory | None
    provenance: _Provenance | None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        there = [name for name in _FIGURES if getattr(self, name) is not None]
        if (there and len(there) < len(_FIGURES)) or (not there and self.status in ("ok", "parity-failed")):
            missing = next(name for name in _FIGURES if name not in there)
            raise ValueError(f"{missing} is null in a cell that was measured")
        return self


class _Job(_Part):
    """``result.json`` of any job."""

    key: str
    status: Literal[tuple(STATUSES)]  # type: ignore[valid-type]
    reason: str | None


class _Reference(_Job):
    path: str
    outputs: list[str] | None
    cases: list[str] = Field(min_length=1)
    tokens: dict[str, int | None]
    token_level: list[str] | None
    notes: list[str]


class _Cell(_Planned):
    key: str


class _Cpu(_Part):
    model: str
    architecture: str
    cores: int | None
    usable_cores: int
    cgroup_quota: float | None
    flags: list[str]
    governor: str | None


class _Gpu(_Part):
    name: str | None
    driver: str | None
    memory_mib: Size | None
    clock_mhz: Size | None
    most_clock_mhz: Size | None
    throttled_by: list[str] | None


class _Isolated(_Part):
    python: str
    install: list[str]
    packages: Versions


class _Failed(_Part):
    failure: str


class _Environment(_Part):
    cpu: _Cpu
    gpus: list[_Gpu] = Field(default_factory=list)
    memory_mib: Size
    load_average: list[Size]
    os: str
    kernel: str
    python: str
    packages: Versions
    environments: dict[str, _Failed | _Isolated] = Field(default_factory=dict)


class _Labelled(_Part):
    label: str


class _Named(_Part):
    name: str


class _Model(_Part):
    shapes: list[_Named] | None = None


class _Computed(_Part):
    backend: str
    precision: str


class _Spec(_Part):
    models: dict[str, _Model]
    backends: list[_Labelled]
    shapes: list[_Named] | None
    reference: _Computed


class _Run(_Part):
    created: str
    spec: _Spec
    environment: _Environment
    cells: list[_Planned] = Field(min_length=1)

    @field_validator("cells")
    @classmethod
    def _distinct(cls, cells: list[_Planned]) -> list[_Planned]:
        if twice := next((name for name, count in Counter(cell.id for cell in cells).items() if count > 1), None):
            raise ValueError(f"the id {twice!r} is there twice")
        return cells


def read_run(path: Path) -> dict[str, Any]:
    """A ``run.json``.

    Raises:
        SpecError: it cannot be read, is damaged, or is of another schema.
    """
    run = _object(path, "run")
    _check(path, run, _Run)
    return run


def read_result(path: Path, kind: str) -> dict[str, Any] | None:
    """A ``result.json`` of a job of some kind (``models``, ``references`` or ``cells``), if there is one.

    Raises:
        SpecError: it cannot be read, is damaged, or is of another schema.
    """
    if not path.exists():
        return None
    result = _object(path, "result")
    model = _Cell if kind == "cells" else _Reference if kind == "references" and result.get("status") == "ok" else _Job
    _check(path, result, model)
    return result


def is_job(folder: Path) -> bool:
    """Whether a folder has the record of a job that isorun ran there."""
    for name, members in ((RESULT, {"schema", "key"}), (JOB, {"time_limit"})):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(found, dict) and members <= found.keys():
            return True
    return False


def _object(path: Path, what: str) -> dict[str, Any]:
    try:
        found = _plain(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError:
        raise SpecError(f"{path} is damaged: its data is nested too deeply. {_remedy(path)}") from None
    except ValueError as error:
        raise SpecError(f"{path} is no JSON ({cut(str(error), _SHOWN)}). {_remedy(path)}") from error
    if not isinstance(found, dict):
        raise SpecError(f"{path} holds no {what}; it was changed after it was written. {_remedy(path)}")
    if found.get("schema") != SCHEMA:
        schema = cut(repr(found.get("schema")), _SHOWN)
        raise SpecError(f"{path} is of schema {schema}; this isorun reads schema {SCHEMA}. {_remedy(path)}")
    return found


def _plain(value: Any, depth: int = 0) -> Any:
    """Data that every report can print: finite, without lone surrogates (a path that is not UTF-8 has them)."""
    if depth > _DEPTH:
        raise RecursionError
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number of JSON")
    if isinstance(value, list):
        return [_plain(each, depth + 1) for each in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(each, depth + 1) for key, each in value.items()}
    return value


def _check(path: Path, content: Mapping[str, Any], model: type[_Part]) -> None:
    try:
        model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = cut(".".join(map(str, first["loc"])), _SHOWN)
        where = f"{place}: " if place else ""
        raise SpecError(f"{path} is damaged: {where}{cut(first['msg'], _SHOWN)}. {_remedy(path)}") from None


def _remedy(path: Path) -> str:
    if path.name == RUN:
        return "Restore the file, or run the matrix again with another --out"
    return f"Remove the folder {path.parent} and measure it again with --resume"
