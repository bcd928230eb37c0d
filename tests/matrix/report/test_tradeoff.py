"""What reports say of speed and of what a search keeps."""

from typing import Any

import pytest

from isorun_matrix.report import html, markdown, plots, summary, terminal, tradeoff
from isorun_matrix.report.columns import columns
from isorun_matrix.results.records import CellResult
from matrix_results import cell, printed, run


def kept(value: float) -> dict[str, Any]:
    """A result in which so many neighbours are kept."""
    interval = {"value": value, "low": value - 0.01, "high": min(1.0, value + 0.01)}
    return {"quality": dict.fromkeys(("recall", "first", "tau"), interval) | {"k": 10, "queries": 300}}


def scored(value: float, kept: float) -> dict[str, Any]:
    """A result with a score by labels, of which so much is kept."""
    interval = {"value": kept, "low": kept - 0.01, "high": min(1.0, kept + 0.01)}
    figures = {"nDCG@10": value, "recall@10": 0.7}
    return {
        "quality": {"name": "nDCG@10", "value": value, "base": value / kept, "kept": interval, "figures": figures}
        | {"judged_on": "60 queries"}
    }


EXACT = cell("exact", "ok", 20.0, result=kept(1.0))
QUICK = cell("quick", "ok", 5.0, precision="int8", result=kept(0.96))
WORSE = cell("worse", "ok", 8.0, precision="int8", result=kept(0.93))
LOSSY = cell("lossy", "quality-failed", 2.0, precision="int8", reason="a search keeps 0.700", result=kept(0.7))
CELLS = (EXACT, QUICK, WORSE, LOSSY)


def group_of(*cells: CellResult) -> summary.Group:
    (group,) = summary.groups(cells)
    return group


def test_the_best_cells_are_correct_and_beaten_by_none() -> None:
    assert tradeoff.best(group_of(*CELLS)) == [QUICK, EXACT]
    assert tradeoff.best(group_of(LOSSY, cell("plain", "ok", 1.0))) == []


def test_a_conclusion_has_the_gain_and_the_loss() -> None:
    (sentence,) = tradeoff.conclusions(group_of(*CELLS))
    for part in (
        "quick int8",
        "4.00 x as fast as exact fp32",
        "0.960 of the 10 nearest",
        "0.950 to 0.970",
        "300 texts",
    ):
        assert part in sentence
    busy = cell("exact", "ok", 20.0, result=kept(1.0), disturbed=[1, 2, 3, 4, 5])
    (doubtful,) = tradeoff.conclusions(group_of(busy, QUICK))
    assert "disturbed" in doubtful
    assert "disturbed" not in sentence
    (alone,) = tradeoff.conclusions(group_of(QUICK, LOSSY))
    assert "as fast" not in alone


def test_a_cell_that_loses_too_much_does_not_compete() -> None:
    group = group_of(*CELLS)
    assert group.fastest == QUICK
    assert group.status(LOSSY) == "quality-failed"


@pytest.mark.parametrize("table", ["terminal", "markdown", "html", "parity", "all"])
def test_columns_of_quality_appear_where_it_was_measured(table: str) -> None:
    without = [column.header for column in columns(table, [cell("plain", "ok", 1.0)])]
    assert "neighbours" not in without
    shown = [column.header for column in columns(table, [cell("plain", "ok", 1.0), QUICK])]
    assert "neighbours" in shown
    assert ("max rel" in shown) == (table in ("markdown", "parity", "all"))


def test_scores_by_labels_have_columns_words_and_a_plot() -> None:
    exact = cell("exact", "ok", 20.0, result=scored(0.5, 1.0))
    quick = cell("quick", "ok", 5.0, result=scored(0.48, 0.96))
    (sentence,) = tradeoff.conclusions(group_of(exact, quick))
    assert "keeps 0.960 of nDCG@10 in fp32 (0.950 to 0.970, 95% confidence, 60 queries)" in sentence
    shown = [column.header for column in columns("terminal", [exact])]
    assert {"nDCG@10", "kept"} < {*shown}
    assert {"neighbours", "max rel"}.isdisjoint(shown)
    assert {"recall@10", "low end"} < {column.header for column in columns("markdown", [exact])}
    assert "0.480" in printed(terminal.render(run(exact, quick)), 200)
    plot = plots.quality(group_of(exact, quick))
    assert plot is not None
    assert ("nDCG@10" in plot["y"], plot["series"][1]["y"]) == (True, [0.96])


def test_every_report_has_the_figures() -> None:
    document = run(*CELLS)
    page = printed(terminal.render(document), 200)
    assert "0.960" in page
    assert "a search keeps 0.700" in page
    for text in (page, markdown.render(document), html.render(document)):
        assert "keeps 0.960 of the 10 nearest neighbours" in text
        assert "quality-failed" in text


def test_the_plot_has_intervals_and_a_line_along_the_best() -> None:
    plot = plots.quality(group_of(*CELLS))
    assert plot is not None
    *points, front = plot["series"]
    assert [(point["x"], point["y"]) for point in points] == [
        ([20.0], [1.0]),
        ([5.0], [0.96]),
        ([8.0], [0.93]),
        ([2.0], [0.7]),
    ]
    assert points[1]["below"] == pytest.approx([0.01])
    assert (front["front"], front["x"], front["y"]) == (True, [5.0, 20.0], [0.96, 1.0])
    assert plots.quality(group_of(QUICK, cell("plain", "ok", 1.0))) is None
