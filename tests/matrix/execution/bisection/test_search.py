import pytest

from isorun_matrix.execution.bisection.search import Found, Step, search

RELEASES = [f"1.{minor}" for minor in range(12)]


@pytest.mark.parametrize("first_bad", range(1, 12))
def test_finds_every_first_bad_release_in_few_steps(first_bad: int) -> None:
    judged = []

    def judge(release: str, left: int) -> Step:
        judged.append((release, left))
        return Step(release, "bad" if RELEASES.index(release) >= first_bad else "good", "")

    assert search(RELEASES, judge) == Found(RELEASES[first_bad - 1], RELEASES[first_bad], ())
    assert len(judged) <= 4
    assert [left for _, left in judged] == sorted((left for _, left in judged), reverse=True)


def test_names_all_candidates_if_the_deciding_releases_are_skipped() -> None:
    def judge(release: str, left: int) -> Step:
        index = RELEASES.index(release)
        return Step(release, "skipped" if 4 <= index <= 6 else "bad" if index > 5 else "good", "")

    assert search(RELEASES, judge) == Found("1.3", "1.7", ("1.4", "1.5", "1.6"))


def test_neighbours_need_no_step() -> None:
    assert search(RELEASES[:2], lambda *_: pytest.fail("nothing lies between")) == Found("1.0", "1.1", ())
