import pytest

from isorun_matrix.execution.rounds import lacking, shuffled
from isorun_matrix.results.records import RoundResult
from matrix_results import measurement


def results(name: str, rounds: dict[int, str], order: str = "ab") -> list[RoundResult]:
    """The results of a cell: by the number of the round, ``ok``, ``disturbed`` or a status."""
    round_results = []
    for number, what in rounds.items():
        measured = what in ("ok", "disturbed")
        content = {
            **{"key": "k", "status": "ok" if measured else what, "request": "r", "machine": {}, "seed": 0},
            "round": {"number": number, "position": 0, "order": list(order)},
            "result": measurement(1.0, waited=0.5 if what == "disturbed" else 0.0) if measured else None,
        }
        round_results.append(RoundResult.from_plain(content))
    return round_results


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({}, {}, "ab"),
        ({1: "ok", 2: "ok"}, {1: "ok", 2: "ok"}, ""),
        ({1: "ok", 2: "ok"}, {1: "ok"}, "ab"),  # round 2 was interrupted
        ({1: "ok", 2: "ok"}, {1: "ok", 2: "crashed"}, "b"),
        ({1: "ok", 2: "ok"}, {1: "ok", 2: "disturbed"}, "ab"),  # both are measured again, in one round
        ({1: "ok", 2: "ok", 3: "ok"}, {1: "disturbed", 2: "disturbed", 3: "disturbed"}, ""),  # one more at most
    ],
)
def test_cells_that_need_another_round(a: dict[int, str], b: dict[int, str], expected: str) -> None:
    assert lacking({"a": results("a", a), "b": results("b", b)}, 2, 1) == list(expected)


def test_a_cell_that_left_the_spec_does_not_count() -> None:
    assert lacking({"a": results("a", {1: "ok", 2: "ok"}, "az")}, 2, 0) == []


def test_rounds_with_the_same_number_in_different_sessions_are_told_apart() -> None:
    alone = results("b", {1: "disturbed", 2: "ok", 3: "ok"}, "b")
    assert lacking({"a": results("a", {1: "ok", 2: "ok"}, "a"), "b": alone}, 2, 1) == []
    assert lacking({"a": results("a", {1: "ok", 2: "ok"}), "b": alone}, 2, 1) == ["a"]  # which were interrupted


def test_the_order_of_a_round_depends_on_its_number() -> None:
    names = list("abcdefgh")
    orders = [shuffled(names, 1, "m/1x8", number) for number in range(9)]
    assert len({tuple(order) for order in orders}) > 7
    assert all(sorted(order) == names for order in orders)
    assert shuffled(names, 1, "m/1x8", 0) == orders[0]
