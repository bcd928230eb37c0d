"""What a session of a run does of its plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from isorun.errors import SpecError
from isorun_matrix.execution.plan import Plan
from isorun_matrix.report.formatting import shortened
from isorun_matrix.results.folder import RunFolder


@dataclass(frozen=True)
class Choice:
    """What a session of a run does.

    Attributes:
        resume: whether to continue the run in the folder.
        only: the ids of the cells to measure; ``None`` for all.
        remeasure_disturbed: whether disturbed rounds are repeated again, although they were repeated as often as the
            spec says.
        fingerprints: of the models that are required, where the run is a rerun of another.
        prepared: a run whose seed and references this one uses, so that several machines have the same.
        any_version: whether environments may have versions of runtimes that isorun does not support.
    """

    resume: bool = False
    only: Collection[str] | None = None
    remeasure_disturbed: bool = False
    fingerprints: Mapping[str, str] | None = None
    prepared: RunFolder | None = None
    any_version: bool = False


def select(planned: Plan, patterns: Sequence[str]) -> set[str]:
    """The ids of the cells that match a pattern: shell wildcards, or the start of an id.

    Raises:
        SpecError: a pattern matches no cell.
    """
    names: set[str] = set()
    ids = [cell.id for cell in planned.cells if not cell.control]
    for pattern in patterns:
        matching = {name for name in ids if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")}
        if not matching:
            raise SpecError(f"--only {pattern!r} matches no cell. Cells have ids such as {shortened(ids)}")
        names |= matching
    return names
