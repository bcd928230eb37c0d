"""What cells are compared with, and the comparison, for a model whose mask has another name and for one without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import masks
from isorun import Session
from isorun.parity import DEFAULT_TOLERANCES
from isorun.parity.samples import MASKS
from isorun_matrix.execution.compute_reference import reference
from isorun_matrix.measurement import parity


@pytest.mark.parametrize("mask", [masks.NAME, None])
def test_real_tokens_are_compared(mask: str | None, tmp_path: Path) -> None:
    """The reference leaves zeros at padding, the session hidden states."""
    path = masks.write(tmp_path / "model.onnx", mask)
    job: dict[str, Any] = {
        **{"model": "m", "path": str(path), "origin": str(path), "backend": "ort-cpu", "precision": "fp32"},
        **{"batch": 2, "sequence": 40, "dims": {}, "lengths": "full", "texts": None, "feeds": 1, "seed": 0},
        **{"masks": list(MASKS), "outputs": None},
    }
    if mask is not None:
        job["lengths"] = [40, 3]
    workload = reference(job, tmp_path)
    assert workload["mask"] == mask
    assert workload["tokens"]["feeds-0"] == (80 if mask is None else 43)
    assert len(workload["cases"]) == (1 if mask is None else 6)
    with Session(path, "ort-cpu", padding="keep") as session:
        found = parity.check(
            session, tmp_path / "feeds.npz", tmp_path / "outputs.npz", workload, DEFAULT_TOLERANCES["fp32"]
        )
    assert found["verdict"] == "pass", found["summary"]
