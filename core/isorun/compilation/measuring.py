"""Candidates side by side: how accurate each one is, then how fast, interleaved.

A candidate is a backend and a precision. :mod:`isorun.compilation.fastest_precision` measures the precisions of one
backend in this process, :mod:`isorun.compilation.fastest_backend` those of every backend in child processes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from isorun.compilation import accuracy, corpus
from isorun.compilation.accuracy import Run
from isorun.errors import BackendFailed
from isorun.types import Feeds, ModelInfo

BASE = "fp32"
"""The precision that others are compared with."""

WIDER = ("fp64",)
"""Wider than the base: not candidates."""

_GAIN = 1.05  # the minimum speed-up that is not noise
_SAME = 1e-5  # cosines that differ by less are equally accurate


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A backend and a precision that were tested.

    Attributes:
        backend, precision: their names.
        milliseconds: the median time of a request, which is one row of a batch; ``None`` if it was not timed.
        cosine: the minimum cosine of any held-out request's outputs to those in fp32; ``None`` if there is none.
        worst: the kind of that request.
        cosines: the minimum cosine of each kind.
        reason: why it cannot be chosen; empty if it can.
    """

    backend: str
    precision: str
    milliseconds: float | None = None
    cosine: float | None = None
    worst: str | None = None
    cosines: Mapping[str, float | None] = field(default_factory=dict)
    reason: str = ""

    def timed(self, times: Mapping[Key, float], failed: Mapping[Key, str]) -> Candidate:
        """The same with the results of :func:`times`."""
        key = self.backend, self.precision
        return replace(self, milliseconds=times.get(key), reason=self.reason or failed.get(key, ""))


Key = tuple[str, str]
"""A backend and a precision."""


class Judges(NamedTuple):
    """What candidates are judged by.

    Attributes:
        info: the model.
        kinds: held-out requests, by kind.
        expected: the model's outputs in fp32 for each of them.
        required: the minimum cosine.
    """

    info: ModelInfo
    kinds: Mapping[str, Sequence[Feeds]]
    expected: Mapping[str, Sequence[Sequence[Any]]]
    required: float

    @classmethod
    def by(cls, run: Run, info: ModelInfo, kinds: Mapping[str, Sequence[Feeds]], required: float) -> Judges:
        """Judges with the outputs that a run in fp32 returns."""
        return cls(info, kinds, {kind: [run(feeds) for feeds in batches] for kind, batches in kinds.items()}, required)

    def judge(self, key: Key, run: Run) -> Candidate:
        """A candidate with its accuracy."""
        backend, precision = key
        judged = accuracy.judge(self.info, run, self.kinds, self.expected, accuracy.limits(self.required))
        worst, cosine = judged.worst
        return Candidate(
            backend=backend,
            precision=precision,
            cosine=cosine,
            worst=worst,
            cosines=judged.cosines,
            reason=judged.reason,
        )


class Pace(NamedTuple):
    """How long to measure.

    Attributes:
        rounds: the maximum number of rounds; every candidate has a turn in each.
        seconds, total: of all turns of a candidate, and of all candidates, at most.
        turn: the length of a turn in seconds to aim at: of the workload, no more runs than the slowest candidate does
            in that time.
        pause: before a turn, so that the threads of other processes no longer spin. It ends with an untimed run.
    """

    rounds: int
    seconds: float
    total: float
    turn: float
    pause: float = 0.0


def times(runs: Mapping[Key, Run], workload: Sequence[Feeds], pace: Pace) -> tuple[dict[Key, float], dict[Key, str]]:
    """The median time of a request in milliseconds for each candidate, interleaved.

    Args:
        runs: the candidates.
        workload: what each of them runs in a turn.
        pace: how long.

    Returns:
        The times, and why a candidate failed.
    """
    failed: dict[Key, str] = {}
    first: dict[Key, float] = {}
    for key, run in runs.items():
        try:
            for _ in range(2):  # the first pass compiles what shapes need
                first[key] = _seconds(run, workload)
        except BackendFailed as error:
            failed[key] = str(error)
    slowest = max((first[key] for key in runs if key not in failed), default=0.0)
    served = workload[: max(1, int(len(workload) * min(1.0, pace.turn / max(slowest, 1e-9))))]
    requests = sum(map(corpus.requests, served))
    measured: dict[Key, list[float]] = {key: [] for key in runs}
    begin, rounds = time.perf_counter(), 0
    budget = min(pace.seconds * len(runs), pace.total)
    while rounds == 0 or (rounds < pace.rounds and time.perf_counter() - begin < budget):
        for key in list(runs) if rounds % 2 == 0 else list(runs)[::-1]:
            if key in failed:
                continue
            try:
                if pace.pause:
                    time.sleep(pace.pause)
                    runs[key](served[0])
                measured[key].append(_seconds(runs[key], served))
            except BackendFailed as error:
                failed[key] = str(error)
        rounds += 1
    found = {key: statistics.median(values) for key, values in measured.items() if key not in failed}
    return {key: round(seconds / requests * 1e3, 4) for key, seconds in found.items()}, failed


def best(candidates: Sequence[Candidate]) -> Candidate | None:
    """The most accurate candidate of those that are as fast as the fastest, within 5 %; ``None`` if none was timed."""
    timed = [each for each in candidates if each.milliseconds is not None and not each.reason]
    fastest = min((each.milliseconds or 0.0 for each in timed), default=0.0)
    near = [each for each in timed if (each.milliseconds or 0.0) <= fastest * _GAIN]
    return min(near, key=lambda each: round((1 - (each.cosine or 0.0)) / _SAME), default=None)


def _seconds(run: Run, workload: Sequence[Feeds]) -> float:
    start = time.perf_counter()
    for feeds in workload:
        run(feeds)
    return time.perf_counter() - start
