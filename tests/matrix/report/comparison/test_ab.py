from __future__ import annotations

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
    ],
)
def test_verdicts_on_the_second_side(a: CellResult, b: CellResult, verdict: str, of: str) -> None:
    (compared,) = ab.compare(run(a, b), [Pair("m/8x128/x/fp32", a.id, b.id)])
    assert (compared.verdict, compared.of) == (verdict, of)
    assert ("x CPU" in printed(ab.render([compared], 100), 100)) == (of == "cpu")
    assert bool(ab.regressions([compared], 5)) == (verdict in ("slower", "B is crashed"))
