"""What reports say of cells under load."""

import re

from isorun_matrix.report import html, markdown, plots, summary, terminal, under_load
from isorun_matrix.results.records import CellResult
from matrix_results import cell, printed, run


def group_of(*cells: CellResult) -> summary.Group:
    (group,) = summary.groups(cells)
    return group


def loaded(name: str, rate: float, status: str = "ok") -> CellResult:
    """A cell with the rate that a search found, or with the status of one that failed."""
    trial = {"rate": rate, "requests": 300, "requests_per_s": rate, "p50_ms": 4.0, "p90_ms": 8.0, "p99_ms": 19.0}
    figures = {"requests_per_s": rate, "rows_per_s": rate, "result": trial, "trials": [trial], "generator": "g"}
    figures["between"] = [rate * 0.95, rate * 1.05]
    load = {"key": "k", "status": status, "load": {"name": "server-20ms", "p99_ms": 20.0}}
    why = {"reason": "too many requests", "remedy": "Try less."} if status != "ok" else {}
    return cell(name, "ok", 4.5, loads=[load | why | {"result": figures if status == "ok" else None}])


def test_loads_are_in_every_report() -> None:
    result = run(loaded("a", 40.0), loaded("b", 40.0, "timeout"))
    for text in (printed(terminal.render(result), 200), markdown.render(result), html.render(result)):
        assert re.search(r"a fp32 answers 40\.0 \S*38\.0 to 42\.0\S* a second with 99% .* within 20 ms", text)
        assert "timeout" in text
        assert "b fp32 (server-20ms): too many requests. Try less." in text
    plot = plots.load(group_of(*result.cells))
    assert (plot["bounds"], plot["series"][0]["y"]) == ([20.0], [19.0])


def test_rates_that_may_be_the_same_are_not_told_apart() -> None:
    close = under_load.best(group_of(loaded("a", 38.0), loaded("b", 40.0), loaded("c", 20.0)))
    assert close == [
        "server-20ms: b fp32 answers 40.0 (38.0 to 42.0) a second with 99% of the answers within 20 ms; "
        "a fp32 may answer as many"
    ]
    (clear,) = under_load.best(group_of(loaded("a", 30.0), loaded("b", 40.0)))
    assert clear.startswith("server-20ms: b fp32 answers the most requests, 40.0 (38.0 to 42.0) a second")


def test_loads_that_had_no_turns_in_common_are_not_compared() -> None:
    cells = [loaded(name, rate) for name, rate in (("a", 30.0), ("b", 40.0), ("added", 90.0))]
    late = cells[2].loads[0].model_copy(update={"together": [cells[2].id]})
    first, later = under_load.best(group_of(*cells[:2], cells[2].model_copy(update={"loads": [late]})))
    assert first.startswith("server-20ms: b fp32 answers the most requests, 40.0")
    assert later.startswith("server-20ms: added fp32 answers 90.0")
    assert "not compared with the others" in first


def test_a_cell_with_wrong_outputs_does_not_answer_the_most_requests() -> None:
    wrong = loaded("wrong", 90.0).model_copy(update={"status": "quality-failed"})
    (line,) = under_load.best(group_of(loaded("a", 40.0), wrong))
    assert line.startswith("server-20ms: a fp32 answers 40.0")
    assert under_load.best(group_of(wrong)) == []


def test_no_cell_answers_within_the_bound() -> None:
    (line,) = under_load.best(group_of(loaded("a", 0.0), loaded("b", 0.0)))
    assert line == "server-20ms: no cell has 99% of the answers within 20 ms at any rate"
