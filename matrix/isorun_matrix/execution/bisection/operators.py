"""Which operators take longer in one release than in another, by ONNX Runtime's own profile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from isorun.errors import BackendNotFound, IsorunError
from isorun.plugin import listing
from isorun_matrix.execution.bisection.search import Found
from isorun_matrix.execution.bisection.subject import Subject
from isorun_matrix.execution.progress import Lines
from isorun_matrix.measurement.statistics.verdicts import Family

OPTION = "profile_prefix"
"""The option of a backend that writes the time of every node."""

_SESSIONS = 6
_WARM_UP, _RUNS = 3, 20
_SHOWN = 5
_SMALL = 0.01  # of a run: less is not worth a line


def explain(subject: Subject, result: Found, progress: Lines) -> list[str]:
    """Which operators take longer in the first bad release than in the last good one, in sentences."""
    try:
        known = listing.load(subject.backend).capabilities.options
    except BackendNotFound:
        known = {}
    if OPTION not in known:
        return [f"Which operator takes longer is unknown: {subject.backend} reports no time of single operators."]
    progress.note(f"Profiling {result.last_good} and {result.first_bad}")
    try:
        longer = slower(subject, result.last_good, result.first_bad, progress)
    except IsorunError as error:
        return [f"Its operators cannot be profiled: {error}"]
    if not longer:
        return ["No operator is shown to take longer by itself."]
    lines = [f"{operator}: {before:.3f} ms to {after:.3f} ms in a run" for operator, before, after in longer]
    return ["Operators that take longer, all nodes of a type together, by how much they add:", *lines[:_SHOWN]]


def slower(subject: Subject, good: str, bad: str, progress: Lines) -> list[tuple[str, float, float]]:
    """The operators that take longer in ``bad``, those that add most first: the type, and the time that all nodes of it
    take in a run of both, in milliseconds.

    The difference is more than chance explains, at 95 % for all operators together, and more than 1 % of the run. Both
    releases run in turns, in six sessions each.
    """
    rounds: dict[str, list[dict[str, float]]] = {good: [], bad: []}
    for index in range(_SESSIONS):
        for release in (good, bad) if index % 2 else (bad, good):
            rounds[release].append(_profile(subject, release, progress))
    names = {name for profiles in rounds.values() for profile in profiles for name in profile}
    least = _SMALL * median(sum(profile.values()) for profile in rounds[good])
    operators = []
    for name in names:
        before, after = ([profile.get(name, 0.0) for profile in rounds[release]] for release in (good, bad))
        if median(after) - median(before) > least and _is_shown(before, after, len(names)):
            operators.append((name, median(before), median(after)))
    return sorted(operators, key=lambda operator: operator[1] - operator[2])


def _is_shown(before: list[float], after: list[float], compared: int) -> bool:
    """Whether an operator is shown to take longer. One that only one release has does: fusion made another of it."""
    if not all(before) or not all(after):
        return True
    ratio = Family([dict(enumerate(before)), dict(enumerate(after))], 2 * compared).ratio(1, 0)
    return ratio is not None and ratio.verdict == "slower"


def _profile(subject: Subject, release: str, progress: Lines) -> dict[str, float]:
    """The time of a run in milliseconds by operator: for each node, the median of its runs."""
    with TemporaryDirectory(prefix="isorun-profile-") as folder:
        options = {OPTION: str(Path(folder) / "profile")}
        with subject.open(release, progress, options=options) as session:
            feeds = next(iter(subject.cases(session.model_info).values()))
            for _ in range(_WARM_UP + _RUNS):
                session.run(None, feeds)
        times: dict[str, dict[str, list[float]]] = {}
        for operator, node, milliseconds in _nodes(Path(folder)):
            times.setdefault(operator, {}).setdefault(node, []).append(milliseconds)
    return {
        operator: sum(median(runs[_WARM_UP:]) for runs in nodes.values() if len(runs) > _WARM_UP)
        for operator, nodes in times.items()
    }


def _nodes(folder: Path) -> Iterator[tuple[str, str, float]]:
    """Each node of each run in a profile: operator, name and milliseconds."""
    for path in folder.iterdir():
        for event in json.loads(path.read_text(encoding="utf-8")):
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                yield event["args"]["op_name"], event["name"], event["dur"] / 1e3
