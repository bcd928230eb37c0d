from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from isorun.errors import BackendFailed
from isorun.parity import DEFAULT_TOLERANCES
from isorun.system.disturbance import Scheduled, share
from isorun_matrix.execution.processes import measure_cell
from isorun_matrix.execution.processes.session import require_precision
from isorun_matrix.jobs import Cell
from isorun_matrix.measurement import timing

CELL = Cell(
    *("m/1x8/b/fp32", "m/1x8", "m", "1x8", 1, 8, "b", None, "b", "fp32", None, None, {}, False, 0, 1, None, 9),
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
    found = refusal(required, reported)
    assert f"{required}, but reports {reported}" in found
    assert ("precisions: [int8]" in found) == ("int8" in reported)


@pytest.mark.parametrize(
    ("waits", "seconds", "measured"),
    [([0.0], 0.1, 1), ([0.5, 0.5, 0.0], 0.1, 3), ([0.5] * 9, 0.1, 5), ([0.5] * 9, 3.0, 1), ([0.04], 0.1, 1)],
    ids=["calm", "a burst", "always", "long", "a little"],
)
def test_measures_again_what_was_disturbed(
    monkeypatch: pytest.MonkeyPatch, waits: list[float], seconds: float, measured: int
) -> None:
    now, waited, runs = 0, 0, []

    def measure() -> timing.Timed:
        nonlocal now, waited
        now += int(seconds * 1e9)
        waited += int(waits[len(runs)] * seconds * 1e9)
        runs.append(timing.Timed(np.array([len(runs)]), {}))
        return runs[-1]

    monkeypatch.setattr(measure_cell, "perf_counter_ns", lambda: now)
    monkeypatch.setattr(measure_cell, "scheduled", lambda: Scheduled(ran=now, waited=waited, stolen=0, busy=now))
    taken, _, _, duration = measure_cell.undisturbed(measure, threads=1)
    assert len(runs) == measured
    assert taken is runs[-1]
    assert duration == int(seconds * 1e9)


def test_the_share_of_waiting_is_of_all_threads() -> None:
    assert share(10, 30, 80) == 0.25
    assert share(30, 10, 80) == 0  # a thread that had waited has ended
    assert share(None, None, 80) is None
