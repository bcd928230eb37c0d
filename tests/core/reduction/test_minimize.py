from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from isorun.reduction.minimize import minimal


@given(st.integers(1, 60).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), min_size=1))))
def test_finds_the_items_that_are_needed(case: tuple[int, set[int]]) -> None:
    size, needed = case
    assert minimal(range(size), lambda part: needed <= set(part)) == sorted(needed)


def test_finds_a_single_item_in_a_logarithmic_number_of_calls() -> None:
    calls: list[Sequence[int]] = []

    def fails(part: Sequence[int]) -> bool:
        calls.append(part)
        return 700 in part

    assert minimal(range(1000), fails) == [700]
    assert len(calls) <= 20


def test_the_result_is_minimal_where_several_parts_fail() -> None:
    def fails(part: Sequence[int]) -> bool:
        return sum(part) >= 30

    part = minimal(range(12), fails)
    assert fails(part)
    assert not any(fails(part[:index] + part[index + 1 :]) for index in range(len(part)))
