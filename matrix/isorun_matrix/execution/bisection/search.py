"""The binary search over releases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["good", "bad", "skipped"]


@dataclass(frozen=True)
class Step:
    """A release that was judged.

    Attributes:
        verdict: whether it has what is searched for (``bad``); ``skipped`` if that cannot be told.
        evidence: what was measured, or why it was skipped, for people.
    """

    release: str
    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class Found:
    """The end of a search.

    Attributes:
        last_good: the newest release known to be good.
        first_bad: the oldest release known to be bad.
        between: releases between the two, all of which were skipped: any of them may be the first bad one.
    """

    last_good: str
    first_bad: str
    between: tuple[str, ...]


def search(releases: Sequence[str], judge: Callable[[str, int], Step]) -> Found:
    """Find the first bad release, if all before it are good and all after it bad.

    Args:
        releases: the oldest first. The first is known to be good, the last one to be bad.
        judge: judges a release. Its second argument is how many releases may still be the first bad one.
    """
    low, high = 0, len(releases) - 1
    skipped: set[int] = set()
    while left := [index for index in range(low + 1, high) if index not in skipped]:
        middle = min(left, key=lambda index: abs(2 * index - low - high))
        step = judge(releases[middle], high - low)
        if step.verdict == "good":
            low = middle
        elif step.verdict == "bad":
            high = middle
        else:
            skipped.add(middle)
    return Found(releases[low], releases[high], tuple(releases[low + 1 : high]))
