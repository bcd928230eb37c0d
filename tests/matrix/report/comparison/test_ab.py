import pytest

from isorun_matrix.report.comparison import ab
from isorun_matrix.results.records import CellResult
from isorun_matrix.spec.pairs import Pair
from matrix_results import cell, printed, run

ALL = (1, 2, 3, 4, 5)


def side(label: str, p50: float, **more: object) -> CellResult:
    return cell(label, "ok", p50, medians=[p50 * factor for factor in (0.99, 1, 1.01, 0.995, 1.007)], **more)


@pytest.mark.parametrize(
    ("a", "b", "verdict", "of"),
    [
        (side("x.a", 10), side("x.b", 11), "slower", "p50"),
        (side("x.a", 11), side("x.b", 10), "faster", "p50"),
        (side("x.a", 10), side("x.b", 10.01), "tied", "p50"),
        (side("x.a", 10), side("x.b", 11, disturbed=ALL), "slower", "cpu"),
        (side("x.a", 10), cell("x.b", "crashed"), "B is crashed", "p50"),
        (cell("x.a", "unavailable"), cell("x.b", "unavailable"), "A is unavailable, B is unavailable", "p50"),
        (cell("x.a", "unavailable"), cell("x.b", "error"), "A is unavailable, B is error", "p50"),
    ],
)
def test_verdicts_on_the_second_side(a: CellResult, b: CellResult, verdict: str, of: str) -> None:
    (compared,) = ab.compare(run(a, b), [Pair("m/8x128/x/fp32", a.id, b.id)])
    assert (compared.verdict, compared.of) == (verdict, of)
    assert ("x CPU" in printed(ab.as_tables([compared]), 100)) == (of == "cpu")
    assert bool(ab.regressions([compared], 5)) == (verdict in ("slower", "B is crashed"))


@pytest.mark.parametrize(
    ("a", "b", "environments", "verdict"),
    [
        (10, 11, (None, "next"), "ambiguous"),
        (11, 10, (None, "next"), "faster"),
        (10, 11, ("now", None), "slower"),
        (11, 10, ("now", None), "ambiguous"),
        (10, 11, ("now", "next"), "slower"),
    ],
)
def test_the_round_trip_to_a_worker_makes_no_side_slower(
    a: float, b: float, environments: tuple[str | None, str | None], verdict: str
) -> None:
    sides = [side(label, p50) for label, p50 in (("x.a", a), ("x.b", b))]
    cells = [side.model_copy(update={"environment": name}) for side, name in zip(sides, environments, strict=True)]
    (compared,) = ab.compare(run(*cells), [Pair("m/8x128/x/fp32", cells[0].id, cells[1].id)])
    assert compared.verdict == verdict
    assert bool(ab.regressions([compared], 5)) == (verdict == "slower")
    assert ("alone runs in an environment" in printed(ab.as_tables([compared]), 200)) == (None in environments)


def test_cpu_time_is_a_verdict_where_few_runs_waited_for_long() -> None:
    """Both keep two cores busy. Most runs never wait, so the waits are in the mean, not in the median."""
    a, b = side("x.a", 10), side("x.b", 12)
    sides = []
    for calm, waited in ((a, 0.1), (b, 0.2)):
        content = calm.model_dump(mode="json")
        for measured in content["result"]["rounds"]:
            measured |= {"mean": measured["p50"] / (1 - waited), "waited": waited, "disturbed": True}
        sides.append(CellResult.from_plain(content))
    (compared,) = ab.compare(run(*sides), [Pair("m/8x128/x/fp32", a.id, b.id)])
    assert (compared.of, compared.verdict) == ("cpu", "slower")


@pytest.mark.parametrize("cores", [0.9, 1.5])  # a side that sleeps between its runs, and one with more threads
def test_cpu_time_is_no_verdict_on_sides_that_keep_other_cores_busy(cores: float) -> None:
    a, b = side("x.a", 10, disturbed=ALL), side("x.b", 10, disturbed=ALL)
    content = b.model_dump(mode="json")
    for measured in content["result"]["rounds"]:
        measured["cpu_ms"] *= cores
    (compared,) = ab.compare(run(a, CellResult.from_plain(content)), [Pair("m/8x128/x/fp32", a.id, b.id)])
    assert compared.verdict == "too few rounds"
    assert "disturbed rounds, left out unless all are: x.a fp32 (5 of 5)" in printed(ab.as_tables([compared]), 200)
