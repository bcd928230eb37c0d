"""Which cells of a workload need another round, and in which order a round runs them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from isorun_matrix.results.records import MEASURED, RoundResult

Rounds = Mapping[str, Sequence[RoundResult]]
"""The results of each cell of a workload."""


def lacking(rounds: Rounds, wanted: int, repeats: int) -> list[str]:
    """The cells that need another round.

    A round counts for a cell if every cell of its order has a result: a round that was interrupted compares nothing. A
    round in which a cell was disturbed is repeated for all cells, since they are compared within rounds.

    Args:
        wanted: how many undisturbed rounds a cell needs.
        repeats: how many more than that it gets at most.
    """
    disturbed = disturbed_rounds(rounds)
    names = []
    for name, results in rounds.items():
        measured = {result.round.key for result in results if result.status in MEASURED and _whole(rounds, result)}
        if len(measured - disturbed) < wanted and len(measured) < wanted + repeats:
            names.append(name)
    return names


def disturbed_rounds(rounds: Rounds) -> set[tuple[int, str]]:
    """The keys of the rounds in which a cell was disturbed."""
    return {
        result.round.key
        for results in rounds.values()
        for result in results
        if result.result is not None and result.result.disturbed
    }


def shuffled(names: Sequence[str], *seeds: int | str) -> list[str]:
    """The names in an order that the seeds determine."""
    order = list(names)
    random.Random("/".join(map(str, seeds))).shuffle(order)
    return order


def _whole(rounds: Rounds, result: RoundResult) -> bool:
    """Whether every cell in the order of a round has a result, of those that are still in the spec."""
    key = result.round.key
    return all(
        any(measured.round.key == key for measured in rounds[name]) for name in result.round.order if name in rounds
    )
