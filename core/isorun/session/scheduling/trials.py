"""Whether a row gets the results in a batch that it gets alone: tried on the first batches of a session.

What is known of a graph says that other rows, and padding on the right, change nothing (``ModelInfo.mixes_rows``,
``ModelInfo.keeps_padding``). A model may compute with the length of the longest row, with ids at padding, or with other
rows in a way that the analysis does not recognize, such as a place counted from the ids of padding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isorun.session.scheduling.calls import Request
from isorun.session.scheduling.collator import Collator

Run = Callable[[Sequence[str], Any], list[Any]]
"""Runs a model: the names of the outputs, and feeds."""

_TRIALS = 3  # batches of the same outputs
_TOLERANCE = {True: 5e-3, False: 0.1}  # of the largest value: a batch may run in another graph than a row
_SMALLEST = {True: 0.1, False: 1.0}  # largest value that counts as such

_logger = logging.getLogger("isorun")


class Trials:
    """Tries batches: see the module. ``exact`` says whether results are those of fp32 or better."""

    def __init__(self, collator: Collator, *, exact: bool) -> None:
        self._collator = collator
        self._exact = exact
        # By outputs, and whether lengths differ: trials left, negative once rows stay apart.
        self._left: dict[tuple[Sequence[str], bool], int] = {}

    def parts(self, requests: Sequence[Request], run: Run) -> list[list[Request]]:
        """Requests of one kind in batches that they may share: all together, by their lengths, or one by one.

        Of the first batches, the shortest row is run alone and beside the longest. Once the results differ, such rows
        stay apart, which is logged.
        """
        lengths = sorted({request.length for request in requests})
        if len(requests) == 1 or self._allows(requests, run, stretched=len(lengths) > 1):
            return [list(requests)]
        if len(lengths) == 1:
            return [[request] for request in requests]
        return [[request for request in requests if request.length == length] for length in lengths]

    def _allows(self, requests: Sequence[Request], run: Run, *, stretched: bool) -> bool:
        outputs = requests[0].outputs
        left = self._left.setdefault((outputs, stretched), _TRIALS)
        if left > 0:
            first, *_, last = sorted(requests, key=lambda request: request.length)
            alone, beside = (self._results(batch, run) for batch in ([first], [first, last]))
            differing = [name for name, *both in zip(outputs, alone, beside, strict=True) if not self._alike(*both)]
            left = -1 if differing else min(left - 1, self._left[outputs, stretched])  # another lane may have refused
            self._left[outputs, stretched] = left
            if differing:
                _logger.warning(
                    "Requests%s do not share batches: beside another row%s, the output %r of a row is not what it is "
                    "alone",
                    " of different lengths" if stretched else "",
                    " that is longer" if stretched else "",
                    differing[0],
                )
        return left >= 0

    def _results(self, requests: list[Request], run: Run) -> list[Any]:
        """Those of the first request, in a batch."""
        outputs = run(requests[0].outputs, self._collator.batch(requests))
        return self._collator.split(outputs, requests)[0]

    def _alike(self, alone: np.ndarray, beside: np.ndarray) -> bool:
        if alone.shape != beside.shape:
            return False
        if alone.dtype.kind not in "fiu":
            return not self._exact or bool(np.array_equal(alone, beside))
        finite = np.isfinite(alone)
        if (finite != np.isfinite(beside)).any():
            return False
        first, second = (values[finite].astype(np.float64) for values in (alone, beside))
        if not first.size:
            return True
        scale = max(float(np.abs(first).max()), _SMALLEST[self._exact])
        return bool(np.abs(first - second).max() <= _TOLERANCE[self._exact] * scale)
