from __future__ import annotations

import pytest

from isorun.errors import SpecError
from isorun_matrix.report import history
from isorun_matrix.results.records import Run
from matrix_results import cell, printed, run


def dated(day: int, *medians: float | None) -> Run:
    cells = [cell(f"c{index}", "crashed" if p50 is None else "ok", p50) for index, p50 in enumerate(medians)]
    return run(*cells, folder=f"/day{day}").model_copy(update={"created": f"2026-11-0{day}"})


def shown(runs: list[Run], *patterns: str) -> list[str]:
    text = printed(history.render(runs, patterns or ["*"], 100), 100)
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_cell_over_runs_in_the_order_of_their_dates() -> None:
    lines = shown([dated(3, 10.0, None), dated(1, 20.0, 1.0), dated(2, 15.0, 1.0)])
    assert [line.split(",")[0] for line in lines[:3]] == [f"run {day}: 2026-11-0{day}" for day in (1, 2, 3)]
    assert lines[-2:] == ["m/8x128/c0/fp32 █▇▅ 20.0 15.0 10.0", "m/8x128/c1/fp32 ██ 1.00 1.00 -"]
    assert shown([dated(1, 20.0, 1.0)], "*/c1/*")[-1].startswith("m/8x128/c1/fp32")


def test_rejects_a_pattern_without_a_cell() -> None:
    with pytest.raises(SpecError, match="'x'"):
        shown([dated(1, 20.0)], "x")
