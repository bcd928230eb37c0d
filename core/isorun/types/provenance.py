"""What backends and tools report: availability, problems, and proof of what ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used on this machine.

    Attributes:
        ok: whether it can.
        reason, remedy: if it cannot; or why it can only with options, as a family of which no member is installed.
        devices: the names of the GPUs or other accelerators that it may run on: what was measured on others does not
            apply. Empty for processors.
    """

    ok: bool
    reason: str = ""
    remedy: str = ""
    devices: Sequence[str] = ()


@dataclass(frozen=True)
class Finding:
    """A problem that ``isorun doctor`` reports.

    Attributes:
        subject: the affected package, backend, environment or folder.
        severity: ``"error"`` if something does not work as documented; ``"warning"`` if it may not.
        what: the problem.
        why: its cause and consequences.
        command: a shell command that fixes it.
    """

    subject: str
    severity: Literal["error", "warning"]
    what: str
    why: str
    command: str


@dataclass(frozen=True)
class RuntimeReport:
    """What a runtime reports after compiling a model; nothing in it is assumed.

    Attributes:
        device: the hardware's name, from the runtime or the system.
        precision: the precision of the matrix products, as the runtime reports it: one of :data:`PRECISIONS`, several
            joined by ``+``, or empty where there are no such products.
        operators: the number of nodes by provider or device, and by operator.
        versions: package versions.
        details: other reported data, such as JSON can hold.
    """

    device: str
    precision: str
    operators: Mapping[str, Mapping[str, int]]
    versions: Mapping[str, str]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Provenance:
    """What runs, where, and how it was prepared.

    Attributes:
        backend, device, precision: what runs, as the runtime reports it.
        threads: the number of threads for a run; ``None`` if the backend does not set it.
        operators: the number of nodes by provider or device, and by operator.
        fused: the fused operators of the graph before lowering.
        dialect: the dialect that the graph was lowered to.
        fingerprint: SHA-256 of the original model, and of the requested outputs unless all are.
        cache: whether the lowered model was ``"found"`` in the cache or ``"made"``.
        skipped: the skipped backends that precede this one, each with the reason.
        versions: package versions, including isorun's.
        environment: the isolated environment: its name and its versions of Python and NumPy; empty for this process.
        details: other data that the runtime reports.
    """

    backend: str
    device: str
    precision: str
    threads: int | None
    operators: Mapping[str, Mapping[str, int]]
    fused: Mapping[str, int]
    dialect: str
    fingerprint: str
    cache: str
    skipped: tuple[tuple[str, str], ...]
    versions: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists, for JSON."""
        return {spec.name: plain(getattr(self, spec.name)) for spec in fields(self)}

    def __str__(self) -> str:
        nodes = {device: sum(counts.values()) for device, counts in self.operators.items()}
        lines = [
            ("backend", f"{self.backend} on {self.device}, {threads_in_words(self.threads)}"),
            ("precision", self.precision),
            ("nodes", ", ".join(f"{count} on {device}" for device, count in nodes.items())),
            ("fused", ", ".join(f"{count} {name}" for name, count in self.fused.items()) or "none"),
            ("lowered", f"to {self.dialect} ({self.cache} in the cache)"),
            ("model", self.fingerprint),
            ("versions", ", ".join(f"{name} {version}" for name, version in self.versions.items())),
        ]
        if self.environment:
            python, numpy = self.environment["python"], self.environment["numpy"]
            lines.append(("environment", f"{self.environment['name']}: Python {python}, NumPy {numpy}"))
        if self.skipped:
            lines.append(("skipped", f"{', '.join(name for name, _ in self.skipped)} (provenance.skipped says why)"))
        return "\n".join(f"{label:<13}{value}" for label, value in lines)


def plain(value: Any) -> Any:
    """A copy of plain data in which every mapping is a dictionary, and every number one of Python's."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, np.generic):
        return value.item()
    return list(map(plain, value)) if isinstance(value, list) else value


def threads_in_words(threads: int | None) -> str:
    """Format ``Provenance.threads``."""
    if threads is None:
        return "threads not set"
    return f"{threads} thread{'' if threads == 1 else 's'}"
