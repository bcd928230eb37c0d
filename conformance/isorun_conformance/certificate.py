"""The result of the suite as a JSON document, to keep beside a backend and to compare with a later result.

::

    {"certificate": 1, "backend": "mine", "contract": 2, "options": {}, "device": null, "environment": null,
     "date": "2026-11-22",
     "versions": {"isorun": "0.1.0", "isorun-mine": "1.2", "mine-runtime": "3.4", "python": "3.12.3", "numpy": "2.3.5"},
     "hardware": {"device": "...", "processor": "...", "cores": 2, "system": "Linux x86_64 glibc 2.36"},
     "proved": ["binding"], "skipped": {"threads": "not declared: ..."},
     "known_failures": {"test_x[y]": {"reason": "...", "kind": "never", "exception": "...", "reference": "..."}},
     "failed": {"test_z": "..."}, "not_run": {}}
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from isorun.plugin import registry
from isorun.plugin.certificate import FORMAT
from isorun.system.hardware import cpu_name
from isorun.system.threads import usable_cores
from isorun_conformance.result import Report


def certificate(report: Report) -> dict[str, Any]:
    """The document for a result of the whole suite."""
    about, versions = report.about, {"python": platform.python_version(), "numpy": np.__version__}
    environment = about.get("environment") or {}
    if report.environment is None:
        entry = registry.entry(report.backend)
        versions |= {entry.distribution: entry.version} if entry.distribution else {}
    else:
        versions |= {name: environment[name] for name in ("python", "numpy") if name in environment}
    outcomes = {
        outcome: {check.name: check.message for check in report.checks if check.outcome == outcome}
        for outcome in ("failed", "not run")
    }
    return {
        "certificate": FORMAT,
        "backend": report.backend,
        "contract": about.get("contract"),
        "options": dict(report.options),
        "device": report.device,
        "environment": report.environment,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {**about.get("versions", {}), **versions},
        "hardware": {
            "device": about.get("device"),
            "processor": cpu_name(),
            "cores": usable_cores(),
            "system": " ".join(filter(None, (platform.system(), platform.machine(), *platform.libc_ver()))),
        },
        "proved": [capability.name for capability in report.capabilities if capability.status == "proved"],
        "skipped": {
            capability.name: "; ".join(capability.reasons)
            for capability in report.capabilities
            if capability.status == "skipped"
        },
        "known_failures": {check.name: asdict(check.known) for check in report.checks if check.known is not None},
        "failed": outcomes["failed"],
        "not_run": outcomes["not run"],
    }


def regressions(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What an earlier certificate has and a later one lacks, in words.

    Other versions and other hardware are no regression.
    """
    for name in before["proved"]:
        if name not in now["proved"]:
            skipped = now["skipped"].get(name)
            yield f"{name} was proved" + (f" and is skipped: {skipped}" if skipped else " and is not any more")
    for name, known in now["known_failures"].items():
        if name not in before["known_failures"]:
            yield f"{name} is a new known failure: {known['reason']}"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Other versions, hardware and settings, in words: what may have caused a regression."""
    for section in ("versions", "hardware"):
        for name, value in now[section].items():
            if before[section].get(name) != value:
                yield f"{name}: {before[section].get(name)} -> {value}"
    for name in ("contract", "options", "device", "environment"):
        if before.get(name) != now[name]:
            yield f"{name}: {before.get(name)} -> {now[name]}"
