import itertools
from pathlib import Path

import pytest

from isorun_matrix.execution import runner
from isorun_matrix.execution.bisection.measured import MEMORY, ByMeasure, judge
from isorun_matrix.execution.bisection.subject import Subject
from isorun_matrix.execution.plan import Choice
from isorun_matrix.execution.progress import Lines
from isorun_matrix.report.comparison import ab
from isorun_matrix.report.summary import TIME, Measures
from isorun_matrix.results.records import CellResult, Run
from isorun_matrix.spec.pairs import Pair
from matrix_results import ROUNDS, cell, run


def release(label: str, p50: float, spread: float = 1.0, mib: float = 100.0) -> CellResult:
    medians = [p50 * (1 + (factor - 1) * spread) for factor in (0.99, 1, 1.01, 0.995, 1.007)]
    measured = cell(label, "ok", p50, medians=medians).model_dump(mode="json")
    for number, place in enumerate(measured["result"]["rounds"]):
        place["session_mib"] = mib * ROUNDS[number]
    return CellResult.from_plain(measured)


def verdict(*cells: CellResult, measures: Measures = TIME) -> str | None:
    pairs = [Pair(b.id, a.id, b.id) for a, b in itertools.pairwise(cells)]
    return judge(*ab.compare(run(*cells), pairs, measures), percent=5)[0]


@pytest.mark.parametrize(
    ("middle", "expected"), [(10.0, "good"), (10.3, "good"), (12.0, "bad"), (11.0, "bad"), (9.0, "good")]
)
def test_judges_by_time(middle: float, expected: str) -> None:
    assert verdict(release("1.0", 10), release("1.1", middle), release("1.2", 12)) == expected


def test_a_noisy_release_that_the_bad_one_exceeds_is_good() -> None:
    noisy = release("1.1", 10, spread=6)
    assert verdict(release("1.0", 10), noisy) is None
    assert verdict(release("1.0", 10), noisy, release("1.2", 20)) == "good"


def test_judges_by_memory_alone() -> None:
    assert verdict(release("1.0", 10), release("1.1", 20), measures=MEMORY) == "good"
    assert verdict(release("1.0", 10), release("1.1", 10, mib=120), measures=MEMORY) == "bad"


def test_more_rounds_may_decide_where_too_few_were_undisturbed() -> None:
    cells = [cell(name, "ok", 10.0, disturbed=[1, 2, 3]) for name in ("1.0", "1.1")]
    assert verdict(*cells, measures={"p50": TIME["p50"]}) is None


def test_names_the_noise_that_hides_a_difference() -> None:
    cells = [release("1.0", 10), release("1.0~control", 12), release("1.1", 11.5)]
    (compared,) = ab.compare(run(*cells), [Pair(cells[2].id, cells[0].id, cells[2].id)], TIME)
    reached, evidence = judge(compared, percent=5)
    assert (reached, "1.20 x" in evidence) == (None, True)


def test_a_release_that_fails_is_skipped() -> None:
    assert verdict(release("1.0", 10), cell("1.1", "crashed"), release("1.2", 12)) == "skipped"


@pytest.mark.parametrize("resumed", [True, False])
def test_a_resumed_search_repeats_the_rounds_that_decided_nothing(
    resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeated = []

    def undecided(*arguments: Choice) -> Run:
        repeated.append(arguments[-1].remeasure_disturbed)
        return run(*(cell(name, "ok", 10.0, disturbed=[1, 2, 3, 4, 5]) for name in ("1.0", "1.1")))

    monkeypatch.setattr(runner, "run", undecided)
    monkeypatch.setattr(Subject, "spec", lambda *_: None)
    subject = Subject(tmp_path / "model.onnx", "ort-cpu", "onnxruntime")
    judge_release = ByMeasure(subject, "1.0", "1.1", {"p50": TIME["p50"]}, 5, tmp_path, 12, Lines(), resumed)
    step = judge_release("1.1")
    assert (step.verdict, "quieter" in step.evidence) == ("skipped", True)
    assert repeated == [resumed, False]
