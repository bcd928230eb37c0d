"""What trying a cell and measuring it have in common: opening its session."""

from __future__ import annotations

from itertools import chain
from typing import Any

from isorun import Session
from isorun.errors import BackendFailed
from isorun.system.hardware import DEVICE_FILES
from isorun.system.process_usage import open_files, resident_mib
from isorun_matrix.execution.processes.main import Paused
from isorun_matrix.jobs import Cell, CellJob

_WIDTHS = {"fp64": 64, "fp32": 32, "fp16": 16, "bf16": 16, "int8": 8}


def open_session(job: CellJob, **more: Any) -> Session:
    """Open the session of a cell, with ``more`` arguments."""
    cell = job.cell
    return Session(
        job.model.path,
        cell.backend,
        environment=cell.environment,
        device=cell.device,
        precision=cell.precision,
        threads=cell.threads,
        options=cell.options,
        outputs=job.model.outputs,
        **more,
    )


def resources() -> Paused:
    """What this process, whose session is open, occupies while it pauses."""
    accelerated = any(name.startswith((*chain(*DEVICE_FILES.values()),)) for name in open_files())
    return Paused(0, resident_mib(), on_cpu=not accelerated)


def named(session: Session, outputs: list[Any]) -> dict[str, Any]:
    """The outputs of a run by name."""
    return dict(zip((spec.name for spec in session.get_outputs()), outputs, strict=True))


def require_precision(cell: Cell, reported: str) -> None:
    """Check that a runtime computes in the required precision.

    It may report several, joined by ``+``, of which none may be narrower: a network in bf16 can keep a layer in fp32.

    Raises:
        BackendFailed: it does not.
    """
    parts = reported.split("+")
    narrower = [part for part in parts if _WIDTHS.get(part, 0) < _WIDTHS.get(cell.precision, 0)]
    if cell.precision not in parts or narrower:
        remedy = ". The model is already quantized: use precisions: [int8]" if "int8" in narrower else ""
        raise BackendFailed(f"{cell.backend} must compute in {cell.precision}, but reports {reported}{remedy}")
