"""Candidates side by side: how accurate each one is, then how fast.

A candidate is a backend and a precision. :mod:`isorun.tuning.precision` measures the precisions of one backend in this
process, :mod:`isorun.tuning.backend` those of every backend in child processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median

from isorun.compilation import corpus
from isorun.errors import BackendFailed, BackendNotFound, BackendUnavailable, InvalidFeeds, UnsupportedModel
from isorun.tuning.accuracy import Candidate, ReferenceOutputs, Run
from isorun.tuning.timing import TimingBudget, interleave, slowdowns, without_gc
from isorun.types import Feeds

BASE = "fp32"
"""The precision that others are compared with."""

WIDER = ("fp64",)
"""Wider than the base: not candidates."""

UNFIT = (BackendFailed, BackendNotFound, BackendUnavailable, InvalidFeeds, UnsupportedModel)
"""What makes a candidate impossible, rather than the measurement."""

_AS_FAST = 1.05  # a smaller speed-up is not worth a loss of accuracy
_SAME = 1e-5  # cosines that differ by less are equally accurate
_TURN_SECONDS = 1.0  # of the slowest candidate, unless one request takes longer

Key = tuple[str, str]
"""A backend and a precision."""


def measure(
    keys: Iterable[Key],
    open_run: Callable[[Key], Run],
    reference: ReferenceOutputs,
    workload: Sequence[Feeds],
    budget: TimingBudget,
    show: Callable[[str], object],
    close: Callable[[Key], object] = lambda _: None,
) -> list[Candidate]:
    """Compile candidates, compare their outputs with the reference, and time those that are accurate enough.

    Args:
        keys: the candidates.
        open_run: compiles one, and returns what runs it.
        reference: what they are compared with.
        workload: what each of them runs in a turn.
        budget: how long to time.
        show: is told about progress.
        close: releases a candidate that is not timed.
    """
    runs: dict[Key, Run] = {}
    tested: dict[Key, Candidate] = {}
    slowest = 0.0
    for key in keys:
        candidate = Candidate(backend=key[0], precision=key[1])
        try:
            runs[key] = open_run(key)
            candidate = reference.judge(candidate, runs[key])
            if not candidate.reason:
                slowest = max(slowest, _turn(runs[key], workload[:1])())
        except UNFIT as error:
            candidate = replace(candidate, reason=str(error))
        if candidate.reason:
            runs.pop(key, None)
            close(key)
        tested[key] = candidate
    show(f"timing {len(runs)} candidates, interleaved")
    count = round(_TURN_SECONDS / max(slowest * corpus.requests(workload[0]), 1e-9))
    turns = {key: _turn(run, workload[: max(1, count)]) for key, run in runs.items()}
    times, failed = interleave(turns, budget)
    for key, reason in failed.items():
        tested[key] = replace(tested[key], reason=str(reason))
    for key, slowdown in slowdowns(times).items():
        milliseconds = round(median(times[key]) * 1e3, 4)
        tested[key] = replace(tested[key], milliseconds=milliseconds, slowdown=round(slowdown, 4))
    return list(tested.values())


def best(candidates: Sequence[Candidate]) -> Candidate | None:
    """The most accurate of the candidates that are no slower than the fastest; ``None`` if none was timed."""
    as_fast = [candidate for candidate in candidates if (candidate.slowdown or math.inf) <= _AS_FAST]
    return min(as_fast, key=lambda candidate: round((1 - (candidate.cosine or 0.0)) / _SAME), default=None)


def _turn(run: Run, workload: Sequence[Feeds]) -> Callable[[], float]:
    requests = sum(map(corpus.requests, workload))

    def turn() -> float:
        run(workload[0])  # its memory back into the processor's caches
        with without_gc():
            start = time.perf_counter()
            for feeds in workload:
                run(feeds)
            return (time.perf_counter() - start) / requests

    return turn
