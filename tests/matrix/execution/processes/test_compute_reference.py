"""The reference and the comparison with it, for a model whose mask has another name and for one without a mask."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import masks
from isorun import Session
from isorun.parity import DEFAULT_TOLERANCES
from isorun.parity.samples import MASKS
from isorun_matrix.execution.processes.compute_reference import references
from isorun_matrix.execution.processes.main import Paused
from isorun_matrix.jobs import PreparedModel, Reference, ReferenceJob, Workload
from isorun_matrix.measurement import feeds, parity


@pytest.mark.parametrize("mask", [masks.NAME, None])
def test_compares_real_tokens(mask: str | None, tmp_path: Path) -> None:
    """The reference leaves zeros at padding, the session hidden states."""
    path = masks.write(tmp_path / "model.onnx", mask)
    workload = Workload(
        **{"id": "m/2x40", "model": "m", "backend": "ort-cpu", "precision": "fp32", "time_limit": 9},
        **{"batch": 2, "sequence": 40, "dims": {}, "texts": None, "feeds": 1, "seed": 0, "masks": list(MASKS)},
        lengths="full" if mask is None else [40, 3],
    )
    job = ReferenceJob(workload, PreparedModel(str(path), str(path), None, "f00d"))
    pauses: list[Paused] = []
    reference = references(job, tmp_path, pauses.append)
    assert [state.turns for state in pauses] == [*range(len(reference.cases), 0, -1)]
    assert reference.mask == mask
    assert reference.tokens["feeds-0"] == (80 if mask is None else 43)
    assert len(reference.cases) == (1 if mask is None else 6)
    with Session(path, "ort-cpu", padding="keep") as session:
        files = tmp_path / "feeds.npz", tmp_path / "outputs.npz"
        result = parity.check(outputs_of(session, reference, files[0]), *files, reference, DEFAULT_TOLERANCES["fp32"])
    assert result.verdict == "pass", result.summary


def outputs_of(session: Session, reference: Reference, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    names = [spec.name for spec in session.get_outputs()]
    for case in reference.cases:
        yield case, dict(zip(names, session.run(None, feeds.load(path, case)), strict=True))
