from dataclasses import replace

import pytest

from isorun.errors import BackendFailed
from isorun.parity import DEFAULT_TOLERANCES
from isorun_matrix.execution.processes.session import require_precision
from isorun_matrix.jobs import Cell

CELL = Cell(
    **{"id": "m/1x8/b/fp32", "model": "m", "shape": "1x8", "batch": 1, "sequence": 8, "backend": "b", "label": "b"},
    **{"precision": "fp32", "environment": None, "device": None, "threads": None, "options": {}, "control": False},
    **{"workload": "m/1x8", "warmup": 0, "repetitions": 1, "seconds": None, "turns": 5, "time_limit": 9},
    tolerance=DEFAULT_TOLERANCES["fp32"],
)


def refusal(required: str, reported: str) -> str | None:
    """Why a cell that requires a precision is not measured; ``None`` if it is."""
    try:
        require_precision(replace(CELL, precision=required), reported)
    except BackendFailed as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("required", "reported"), [("fp32", "fp32"), ("bf16", "bf16+fp32"), ("int8", "bf16+int8"), ("fp16", "fp16+fp32")]
)
def test_accepts_wider_layers(required: str, reported: str) -> None:
    assert refusal(required, reported) is None


@pytest.mark.parametrize(
    ("required", "reported"), [("fp32", "bf16"), ("fp32", "bf16+fp32"), ("bf16", "fp32"), ("fp32", "fp32+int8")]
)
def test_rejects_another_or_a_narrower_precision(required: str, reported: str) -> None:
    message = refusal(required, reported)
    assert f"{required}, but reports {reported}" in message
    assert ("precisions: [int8]" in message) == ("int8" in reported)
