import numpy as np
import pytest

from isorun.cli import main
from isorun.errors import SpecError
from isorun_matrix.measurement.statistics.change_points import change_points
from isorun_matrix.report import history
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.records import Run, plain
from matrix_results import CPU, cell, printed, run


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


def test_a_run_that_was_continued_is_where_it_was_measured_last() -> None:
    def measured(day: int, at: str) -> Run:
        figures = cell("c", p50=10.0).result
        assert figures is not None
        rounds = [{**plain(measurement), "started": at} for measurement in figures.rounds]
        continued = run(cell("c", p50=10.0, result={"rounds": rounds}), folder=f"/day{day}")
        return continued.model_copy(update={"created": f"2026-11-0{day}"})

    runs = [measured(1, "2026-11-03T00:00"), measured(2, "2026-11-02T00:00")]
    assert [line.split(",")[1] for line in shown(runs)[:2]] == [" /day2", " /day1"]


def test_a_run_dated_in_the_future_is_named() -> None:
    ahead = run(cell("c"), folder="/ahead").model_copy(update={"created": "2999-01-01T00:00"})
    lines = shown([ahead, dated(2, 10.0), dated(1, 10.0)])
    assert lines[-1] == "run 3 is dated in the future, so its place among the runs is wrong"


def nights(*medians: float | None, cpu: str = "a CPU", disturbed: bool = False) -> list[Run]:
    """A run of one cell each night."""
    runs = []
    for night, p50 in enumerate(medians, start=1):
        busy = [1, 2, 3, 4, 5] if disturbed and night > 9 else []
        only = cell("c", "crashed" if p50 is None else "ok", p50, disturbed=busy, day=night)
        nightly = run(only, folder=f"/night{night}", cpu={**CPU, "flags": [], "governor": None, "model": cpu})
        runs.append(nightly.model_copy(update={"created": f"2026-11-{night:02}T00:00"}))
    return runs


STEADY = (10.0, 10.2, 9.9, None, 10.1, 10.0, 9.8, 10.1, 10.0)


def test_a_change_is_new_in_the_run_that_shows_it() -> None:
    before = nights(*STEADY, 13.0)
    assert history.changes(before, ["*"]) == {}  # one run is no change
    (point,) = history.changes(nights(*STEADY, 13.0, 13.1), ["*"])["m/8x128/c/fp32"]
    assert point.run == 9
    assert point.new
    assert point.ratio == pytest.approx(1.3, abs=0.02)
    (point,) = history.changes(nights(*STEADY, 13.0, 13.1, 12.9), ["*"])["m/8x128/c/fp32"]
    assert (point.run, point.new) == (9, False)
    assert shown(nights(*STEADY, 13.0, 13.1))[-1].startswith("new: m/8x128/c/fp32 takes 1.3")
    for later in ([None], [None] * 5):  # no night that counts: the change was new before
        (point,) = history.changes(nights(*STEADY, 13.0, 13.1, *later), ["*"])["m/8x128/c/fp32"]
        assert (point.run, point.new) == (9, False)


def test_what_is_no_change() -> None:
    assert history.changes(nights(*STEADY, 10.1, 9.9, 10.0), ["*"]) == {}
    assert history.changes(nights(*[10.0] * 9, 10.1, 10.1), ["*"]) == {}  # too small
    assert history.changes(nights(*STEADY[:4], 13.0, 13.1), ["*"]) == {}  # too few runs
    disturbed = nights(*STEADY, 13.0, 13.1, disturbed=True)
    assert history.changes(disturbed, ["*"]) == {}
    assert shown(disturbed)[-1] == "no changes from run 10, 11, disturbed in every round: m/8x128/c/fp32"
    changed = nights(*STEADY, 13.0, 13.1)
    for change in ({"result": {"provenance": {"fingerprint": "beef"}}}, {"options": {"fast": True}}, {"backend": "d"}):
        others = [cell("c", "ok", 10.0, day=day, **change) for day in range(1, 10)]
        before = zip(nights(*STEADY), others, strict=True)
        edited = [run.model_copy(update={"cells": [edited_cell]}) for run, edited_cell in before] + changed[9:]
        assert history.changes(edited, ["*"]) == {}
        assert "no changes from run 1, 2, 3" in printed(history.render(edited, ["*"], 200), 200)
    moved = [*nights(*STEADY), *nights(*STEADY, 13.0, 13.1, cpu="another")[9:]]
    assert history.changes(moved, ["*"]) == {}


@pytest.mark.parametrize(("medians", "code"), [((*STEADY, 13.0, 13.1), 1), ((*STEADY, 13.0, 13.1, 13.0), 0)])
def test_the_command_fails_on_a_new_change(
    medians: tuple[float | None, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {run.folder: run for run in nights(*medians)}
    monkeypatch.setattr(RunFolder, "run", lambda folder: runs[str(folder.path)])
    assert main(["matrix", "history", *runs]) == code


def test_a_run_counts_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = nights(10.0, 10.0)
    copied = first.model_copy(update={"folder": "/copy"})
    runs = {"/night1": first, "/nightly/../night1": first, "/night2": second, "/copy": copied}
    monkeypatch.setattr(RunFolder, "run", lambda folder: runs[str(folder.path)])
    for folder, why in (("/nightly/../night1", "is the same folder as"), ("/copy", "has the same measurements as")):
        assert main(["matrix", "history", "/night1", folder]) == 2
        assert f"{why} /night1" in capsys.readouterr().err
    assert main(["matrix", "history", "/night1", "/night2"]) == 0


@pytest.mark.parametrize("runs", [8, 20])
def test_one_slow_run_is_no_change(runs: int) -> None:
    random = np.random.default_rng(0)
    alarms = 0
    for place in [*range(runs), *[runs - 1] * runs]:
        medians = np.exp(random.normal(0, 0.03, runs))
        medians[place] *= random.uniform(1.3, 3)
        alarms += bool(change_points(list(medians)))
    assert alarms <= runs // 4


def test_small_steps_are_a_change_together() -> None:
    steps = [step for step in (10, 10.19, 10.38, 10.58, 10.78) for _ in range(5)]
    points = change_points(steps)
    assert np.prod([point.ratio for point in points]) == pytest.approx(1.07, abs=0.02)
    assert change_points([*[10.0] * 10, *[10.1] * 10]) == []


def test_how_often_changes_are_found() -> None:
    random = np.random.default_rng(0)

    def shares(last: float) -> float:
        steps = np.concatenate([np.zeros(17), np.full(3, np.log(last))])
        return float(np.mean([bool(change_points(list(np.exp(random.normal(steps, 0.03))))) for _ in range(100)]))

    assert shares(1.0) <= 0.04
    assert shares(1.25) >= 0.95


def test_rejects_a_pattern_without_a_cell() -> None:
    with pytest.raises(SpecError, match="'x'"):
        shown([dated(1, 20.0)], "x")
