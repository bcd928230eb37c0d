"""Delta debugging: the smallest part of a list that still fails."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def minimal(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """A part of a list that fails, and no longer does without any one of its items.

    The algorithm ``ddmin`` of Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (IEEE
    Transactions on Software Engineering 28, 2002). An item that fails alone is found in about 2 log2(n) calls.

    Args:
        items: a list that fails.
        fails: whether a part, in the list's order, fails; called again for parts that it has seen.
    """
    kept, parts = list(items), 2
    while len(kept) > 1:
        bounds = [len(kept) * index // parts for index in range(parts + 1)]
        chunks = [(kept[start:end], kept[:start] + kept[end:]) for start, end in itertools.pairwise(bounds)]
        smaller = next((chunk for chunk, _ in chunks if fails(chunk)), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        rest = next((others for _, others in chunks if parts > 2 and fails(others)), None)
        if rest is not None:
            kept, parts = rest, max(parts - 1, 2)
        elif parts >= len(kept):
            break
        else:
            parts = min(len(kept), 2 * parts)
    return kept
