"""Results of a matrix run, made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isorun_matrix.results.records import CellResult, Run, RunRecord

CPU = {"model": "a CPU", "architecture": "x86_64", "cores": 4, "usable_cores": 2, "cgroup_quota": 1.5}
ENVIRONMENT: dict[str, Any] = {
    "cpu": {**CPU, "flags": ["avx2"], "governor": None},
    **{"memory_mib": 2048, "gpus": [], "load_average": [0.5, 0.4, 0.3], "os": "an OS", "kernel": "6"},
    **{"python": "CPython 3", "packages": {"isorun": "1"}, "environments": {}},
}
SPEC: dict[str, Any] = {
    **{"models": {"m": {"path": "/m.onnx"}}, "backends": [], "shapes": [{"name": "8x128"}]},
    "reference": {"backend": "reference", "precision": "fp64"},
}
LIMITS = {"max_rel": 2e-4, "rms": 2e-5, "cosine": 1 - 1e-8, "max_abs": None, "argmax": None}


def measurement(p50: float, verdict: str = "pass", **changes: Any) -> dict[str, Any]:
    """A measurement of 20 runs; the interval of the median is 2 % to either side."""
    parity = {"max_abs": 1e-6, "max_rel": 2e-6, "rms": 1e-7, "cosine": 1.0, "argmax": 1.0}
    latency: dict[str, Any] = {"samples": 20, "min": p50 * 0.8, "mean": p50, "std": 0.1, "p50": p50}
    latency |= {"p90": p50 * 1.1, "p95": p50 * 1.2, "p99": None, "max": p50 * 2}
    latency |= {"p50_interval": [p50 / 1.02, p50 * 1.02], "notes": ["p99 needs 100 samples, got 20"]}
    provenance = {"backend": "b", "device": "a CPU", "precision": "fp32", "threads": 2}
    provenance |= {"operators": {"CPU": {"MatMul": 7}}, "fused": {"SelfAttention": 3}, "dialect": "onnx"}
    provenance |= {"fingerprint": "f00d", "cache": "found", "passed_over": [], "versions": {"isorun": "1"}}
    return {
        "parity": {"verdict": verdict, "summary": None, **parity, "tolerance": LIMITS, "cases": {}},
        **{"latency_ms": latency, "device_ms": None},
        "spread_ms": {"p5": p50 * 0.9, "p25": p50 * 0.95, "p50": p50, "p75": p50 * 1.05, "p95": p50 * 1.2},
        "throughput": {"requests_per_s": 1000 / p50, "rows_per_s": 8000 / p50, "tokens_per_s": 1024000 / p50},
        **{"load_ms": 250.0, "first_run_ms": p50 * 3, "warmup_runs": 3, "threads": 2, "waited": 0.0},
        **{"memory_mib": {"before_load": 35.0, "peak": 234.5, "gpu": None}, "load_average": [0.1, 0.2, 0.3]},
        **{"provenance": provenance, "notes": []},
        **changes,
    }


def cell(
    name: str, status: str = "ok", p50: float | None = None, *, result: Mapping[str, Any] | None = None, **more: Any
) -> CellResult:
    """A cell of m/8x128, measured if ``p50`` is given; ``result`` changes its measurement."""
    content: dict[str, Any] = {"id": f"m/8x128/{name}/fp32", "model": "m", "shape": "8x128", "label": name}
    content |= {"batch": 8, "sequence": 128, "backend": "b", "environment": None, "precision": "fp32"}
    content |= {"options": {}, "threads": None, "status": status, "key": "k"}
    if p50 is not None:
        measured = measurement(p50, "pass" if status == "ok" else "fail")
        for figure, change in (result or {}).items():
            measured[figure] = {**measured[figure], **change} if isinstance(measured[figure], dict) else change
        content["result"] = measured
    return CellResult.from_plain(content | more)


def run(*cells: CellResult, folder: str = "/run", spec: Mapping[str, Any] | None = None, **environment: Any) -> Run:
    """A run; ``spec`` and ``environment`` change the defaults."""
    return Run.from_plain(
        {"folder": folder, "created": "2026-11-21T00:00", "spec": {**SPEC, **(spec or {})}}
        | {"environment": {**ENVIRONMENT, **environment}, "cells": [each.model_dump(mode="json") for each in cells]}
    )


def record(*cells: CellResult) -> RunRecord:
    """The ``run.json`` of a run of these cells."""
    planned = [each.model_dump(mode="json") for each in cells]
    return RunRecord.from_plain(
        {"created": "today", "spec_file": "s.yaml", "spec": SPEC, "environment": ENVIRONMENT, "cells": planned}
    )
