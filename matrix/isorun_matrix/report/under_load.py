"""Cells under load: a table of rates, and the cells with the highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isorun_matrix.measurement.load.figures import LoadFigures
from isorun_matrix.report.document import Table, texts
from isorun_matrix.report.formatting import NONE, number, shortened
from isorun_matrix.report.summary import Group
from isorun_matrix.results.records import LoadResult

_NEAR = 1.02  # rates that differ by less count as equal

_Measured = tuple[str, Mapping[str, Any], LoadFigures]


def table(group: Group) -> Table | None:
    """Requests a second of each cell under load, with a column for each scenario; ``None`` without load."""
    scenarios = _scenarios(group)
    by_name = {cell.name: {load.name: load for load in cell.loads} for cell in group.cells if cell.loads}
    rows = [
        [cell, *(_rate(loads[name]) if name in loads else NONE for name in scenarios)]
        for cell, loads in by_name.items()
    ]
    headers, numeric = ["requests/s", *scenarios], [False, *(True for _ in scenarios)]
    return Table(headers, numeric, {f"{group.title}, under load": texts(rows)}) if rows else None


def _scenarios(group: Group) -> list[str]:
    return list(dict.fromkeys(load.name for cell in group.cells for load in cell.loads))


def _rate(load: LoadResult) -> str:
    return str(load.status) if load.result is None else _between(load.result)


def _between(figures: LoadFigures) -> str:
    """A rate, with its interval if it has one."""
    rate = number(figures.requests_per_s)
    return f"{rate} ({' to '.join(map(number, figures.between))})" if figures.between else rate


def best(group: Group) -> list[str]:
    """For each scenario, the correct cells with the most requests a second, in a sentence. Cells whose rates may be the
    same are not told apart, and those that had no turns in common, since they were added later, are not compared."""
    conclusions = []
    for name in _scenarios(group):
        by_turns: dict[tuple[str, ...], list[_Measured]] = {}
        for cell in group.cells:
            for load in cell.loads if cell.status == "ok" else ():  # later rounds may have shown wrong outputs
                if load.name == name and load.result is not None:
                    turns = by_turns.setdefault(tuple(sorted(load.together)), [])
                    turns.append((cell.name, load.load, load.result))
        apart = "; not compared with the others, which were measured at another time" if len(by_turns) > 1 else ""
        conclusions += [f"{_best(name, measured)}{apart}" for measured in by_turns.values()]
    return conclusions


def _best(name: str, measured: Sequence[_Measured]) -> str:
    """The cells with the most requests a second among those that were measured in turns."""
    ranked = sorted(measured, key=lambda entry: -entry[2].requests_per_s)
    leader, scenario, figures = ranked[0]
    within = f" with 99% of the answers within {scenario['p99_ms']:g} ms" if scenario.get("p99_ms") else ""
    if not figures.requests_per_s:
        return f"{name}: no cell has{within.removeprefix(' with')} at any rate"
    least = figures.requests_per_s if figures.between is None else figures.between[0]
    highest = {name: (rival.between or (0, rival.requests_per_s))[1] for name, _, rival in ranked[1:]}
    close = [name for name, high in highest.items() if high * _NEAR >= least]
    tied = f"; {shortened(close)} may answer as many" if close else ""
    most = "the most requests, " if ranked[1:] and not close else ""
    return f"{name}: {leader} answers {most}{_between(figures)} a second{within}{tied}"
