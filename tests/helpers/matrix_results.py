"""Results of a matrix run, made up."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType

from isorun_matrix.results.records import CellResult, Run, RunRecord

CPU: dict[str, Any] = {
    "model": "a CPU",
    "architecture": "x86_64",
    "cores": 4,
    "usable_cores": 2,
    "cgroup_quota": 1.5,
    "affinity": "0-1",
}
ENVIRONMENT: dict[str, Any] = {
    "cpu": {**CPU, "flags": ["avx2"], "governor": None},
    **{"host": "h", "virtualization": None, "nice": 0, "variables": {}},
    **{"memory_mib": 2048, "gpus": [], "load_average": [0.5, 0.4, 0.3], "os": "an OS", "kernel": "6"},
    **{"python": "CPython 3", "packages": {"isorun": "1"}, "environments": {}},
}
SPEC: dict[str, Any] = {
    **{"models": {"m": {"path": "/m.onnx"}}, "backends": [], "shapes": [{"name": "8x128"}]},
    **{"reference": {"backend": "reference", "precision": "fp64"}, "rounds": 5},
}
LIMITS = {"max_rel": 2e-4, "rms": 2e-5, "cosine": 1 - 1e-8, "max_abs": None, "argmax": None}


ROUNDS = (0.99, 1.0, 0.995, 1.01, 1.005)
"""The medians of five rounds, as multiples of a cell's p50."""


def _provenance() -> dict[str, Any]:
    provenance = {"backend": "b", "device": "a CPU", "precision": "fp32", "threads": 2}
    provenance |= {"operators": {"CPU": {"MatMul": 7}}, "fused": {"SelfAttention": 3}, "dialect": "onnx"}
    return provenance | {"fingerprint": "f00d", "cache": "found", "skipped": [], "versions": {"isorun": "1"}}


def _latency(p50: float) -> dict[str, Any]:
    latency: dict[str, Any] = {"samples": 20, "min": p50 * 0.8, "mean": p50, "std": 0.1, "p50": p50}
    latency |= {"p90": p50 * 1.1, "p95": p50 * 1.2, "p99": None, "max": p50 * 2}
    return latency | {"notes": ["p99 needs 100 samples, got 20"]}


def _common(p50: float, verdict: str) -> dict[str, Any]:
    parity = {"max_abs": 1e-6, "max_rel": 2e-6, "rms": 1e-7, "cosine": 1.0, "argmax": 1.0}
    return {
        "parity": {"verdict": verdict, "summary": None, **parity, "tolerance": LIMITS, "cases": {}},
        **{"latency_ms": _latency(p50), "cpu_ms": p50 * 2, "device_ms": None},
        "throughput": {"requests_per_s": 1000 / p50, "rows_per_s": 8000 / p50, "tokens_per_s": 1024000 / p50},
        **{"load_ms": 250.0, "first_run_ms": p50 * 3, "warmup_runs": 3, "steady": True, "threads": 2},
        **{"memory_mib": {"before_load": 35.0, "peak": 234.5, "gpu": None}, "load_average": [0.1, 0.2, 0.3]},
        **{"waited": 0.0, "stolen": 0.0, "provenance": _provenance(), "notes": []},
    }


def measurement(p50: float, **changes: Any) -> dict[str, Any]:
    """What one process measured, as it is stored."""
    return {
        **_common(p50, "pass"),
        **{"sampled": {"feeds-0": 3}, "repetition": {"repeated_ms": p50, "varied_ms": p50}, **changes},
    }


def rounds(medians: Sequence[float], disturbed: Sequence[int] = (), day: int = 21) -> list[dict[str, Any]]:
    """Rounds with these medians in milliseconds; those of some numbers (from 1) were disturbed, and took longer."""
    return [
        {"number": number, "position": 0, "started": f"2026-11-{day:02}T00:00", "cpu_ms": 2 * p50}
        | dict.fromkeys(("p50", "mean"), p50 / 0.6 if number in disturbed else p50)
        | {"waited": 0.4 if number in disturbed else 0.0, "stolen": 0.0}
        | {"disturbed": number in disturbed, "used": number not in disturbed}
        for number, p50 in enumerate(medians, start=1)
    ]


def cell(
    name: str,
    status: str = "ok",
    p50: float | None = None,
    *,
    medians: Sequence[float] | None = None,
    disturbed: Sequence[int] = (),
    day: int = 21,
    result: Mapping[str, Any] | None = None,
    **more: Any,
) -> CellResult:
    """A cell of m/8x128, measured if ``p50`` is given; ``medians`` are those of its rounds, about ``p50`` by default,
    and ``result`` changes its figures."""
    content: dict[str, Any] = {"id": f"m/8x128/{name}/fp32", "model": "m", "shape": "8x128", "label": name}
    content |= {"batch": 8, "sequence": 128, "backend": "b", "environment": None, "precision": "fp32", "device": None}
    content |= {"options": {}, "threads": None, "control": "~control" in name, "status": status}
    if p50 is not None:
        figures = _common(p50, "pass" if status == "ok" else "fail")
        figures["spread_ms"] = {"p5": p50 * 0.9, "p25": p50 * 0.95, "p50": p50, "p75": p50 * 1.05, "p95": p50 * 1.2}
        taken = [p50 * share for share in ROUNDS] if medians is None else list(medians)
        figures |= {"p50_interval": {"low": min(taken), "high": max(taken), "level": 0.9375}, "repeated": 1.0}
        figures["rounds"] = rounds(taken, disturbed, day)
        for figure, change in (result or {}).items():
            figures[figure] = {**figures[figure], **change} if isinstance(figures.get(figure), dict) else change
        content["result"] = figures
    return CellResult.from_plain(content | more)


def run(*cells: CellResult, folder: str = "/run", spec: Mapping[str, Any] | None = None, **environment: Any) -> Run:
    """A run; ``spec`` and ``environment`` change the defaults."""
    return Run.from_plain(
        {"folder": folder, "created": "2026-11-21T00:00", "seed": 3, "spec": {**SPEC, **(spec or {})}}
        | {"environment": {**ENVIRONMENT, **environment}, "cells": [result.model_dump(mode="json") for result in cells]}
    )


def printed(shown: RenderableType, width: int) -> str:
    """What a terminal shows, without colours."""
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def record(*cells: CellResult, key: str | None = "k", failure: str | None = None) -> RunRecord:
    """The ``run.json`` of a run of these cells."""
    planned = [result.model_dump(mode="json") | {"key": key, "failure": failure} for result in cells]
    session = {"started": "today", "spec_file": "s.yaml", "environment": ENVIRONMENT}
    return RunRecord.from_plain(
        {"created": "today", "sessions": [session], "spec": SPEC, "seed": 3, "fingerprints": {}, "cells": planned}
    )
