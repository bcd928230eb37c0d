"""Judging releases by time or memory: each is measured in turns with the good and the bad one, in one session."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isorun.errors import BackendUnavailable
from isorun_matrix.execution import runner
from isorun_matrix.execution.bisection import operators
from isorun_matrix.execution.bisection.search import Found, Step, Verdict
from isorun_matrix.execution.bisection.subject import Subject
from isorun_matrix.execution.plan import Choice
from isorun_matrix.execution.progress import Lines
from isorun_matrix.measurement.statistics.verdicts import NEEDED
from isorun_matrix.report import summary
from isorun_matrix.report.comparison import ab
from isorun_matrix.report.comparison.ab import Compared
from isorun_matrix.report.formatting import number
from isorun_matrix.report.summary import Measures
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.spec.pairs import Pair

MEMORY: Measures = {
    "memory": lambda cell: {taken.place: taken.session_mib for taken in summary.rounds(cell) if taken.session_mib}
}
"""What the session of a cell took at its peak in each round, in MiB: its worker's memory included."""


@dataclass(frozen=True)
class ByMeasure:
    """Judges a release: bad if it takes more than the good one, by more than ``percent``.

    Attributes:
        good, bad: the ends of the search.
        measures: what is compared: time or :data:`MEMORY`.
        folder: of all runs; each release has one below it.
        rounds: of a run; twice as many if those decide nothing.
        resumed: whether to repeat disturbed rounds, which decided nothing before.
    """

    subject: Subject
    good: str
    bad: str
    measures: Measures
    percent: float
    folder: Path
    rounds: int
    progress: Lines
    resumed: bool = False

    def __call__(self, release: str) -> Step:
        """Measure a release, together with the good one and the bad one. Raises ``BackendUnavailable`` if the good one,
        or later the bad one, does not run the model."""
        for rounds in (self.rounds, 2 * self.rounds):
            again = self.resumed and rounds == self.rounds
            compared = self._measure(list(dict.fromkeys((self.good, release, self.bad))), rounds, again=again)
            verdict, evidence = judge(*compared, percent=self.percent)
            if verdict is not None:
                return Step(release, verdict, evidence)
        return Step(release, "skipped", f"undecided after {2 * self.rounds} rounds: {evidence}")

    def explain(self, result: Found) -> list[str]:
        """Which operators take longer in the first bad release than in the last good one."""
        if self.measures is MEMORY:
            return ["isorun does not measure the memory of single operators."]
        return operators.explain(self.subject, result, self.progress)

    def _measure(self, releases: Sequence[str], rounds: int, *, again: bool) -> list[Compared]:
        """The last releases, each compared with the one before."""
        folder = RunFolder(self.folder / releases[1])
        first = RunFolder(self.folder / self.bad)
        prepared = first if len(releases) > 2 else None
        choice = Choice(resume=True, remeasure_disturbed=again, prepared=prepared, any_version=True)
        spec = self.subject.spec(releases, rounds)
        run = runner.run(spec, folder.path, folder, self.progress, choice)
        cells = {cell.label: cell for cell in run.cells if not cell.control}
        for end in {*releases} & {self.good, self.bad} - {releases[1]}:
            if cells[end].status != "ok":
                raise BackendUnavailable(
                    self.subject.backend,
                    f"{self.subject.package} {end} does not run the model ({cells[end].status}: {cells[end].reason})",
                    "Choose another release for --good or --bad.",
                )
        ids = [cells[release].id for release in releases]
        pairs = [Pair(b, a, b) for a, b in itertools.pairwise(ids)]
        return ab.compare(run, pairs, self.measures)


def judge(candidate: Compared, worst: Compared | None = None, *, percent: float) -> tuple[Verdict | None, str]:
    """The verdict on a release, and the evidence.

    Args:
        candidate: how it compares with the good one.
        worst: how the bad one compares with it.
        percent: how much more than the good one it must take to be bad.

    Returns:
        ``bad`` if it is shown to take more, and its interval is above ``percent``; ``good`` if its interval has nothing
        above ``percent``, or the bad one is shown to take more than it; ``None`` if neither is shown, which more rounds
        may do.
    """
    ratio, limit = candidate.ratio, 1 + percent / 100
    if ratio is None:
        if candidate.b.status != "ok":
            return "skipped", f"{candidate.b.status}: {candidate.b.reason}"
        return None, f"fewer than {NEEDED} of them can be compared. A quieter machine may decide"
    unit = {"p50": "time", "cpu": "CPU time"}.get(candidate.of, candidate.of)
    ends = f"{number(ratio.interval.low)} to {number(ratio.interval.high)}"
    evidence = f"{number(ratio.ratio)} x the {unit} of {candidate.a.label} ({ends})"
    if ratio.verdict == "slower" and ratio.interval.low > limit:
        return "bad", evidence
    if ratio.interval.high <= limit or (worst is not None and worst.verdict == "slower"):
        return "good", evidence
    if ratio.interval.low > limit:
        evidence += f", of which the control's difference from itself explains {number(ratio.needed)} x"
    return None, evidence
