"""Runs compared with one another: what became faster or slower beyond noise, what is no longer right, and what would
explain it.

The first run is what the others are held against. A cell is found again by its id; what was fed and what ran is
compared beside it, so that a change of the model is never taken for one of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isorun.errors import SpecError
from isorun_matrix.report import summary as view
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.records import SCHEMA

_PROCESSES = 1.05  # what an interval, which is of one process, does not know of
_MOMENTARY = ("load_average", "used_mib", "clock_mhz", "throttled_by")  # of the environment: no two runs have it alike
_SPEC = ("masks", "feeds", "seed", "reference", "warmup", "repetitions", "seconds")
_BY = {"shapes": "name", "backends": "label", "gpus": "name"}  # lists whose items are told apart by a name of theirs


@dataclass(frozen=True)
class Run:
    """One run: its folder, ``run.json`` and document."""

    folder: str
    run: Mapping[str, Any]
    document: Mapping[str, Any]

    @classmethod
    def read(cls, folder: RunFolder) -> Run:
        """The run in a folder.

        Raises:
            SpecError: there is none.
        """
        return cls(str(folder.path), folder.run(), folder.document())


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """Two or more runs, each held against the first.

    Returns:
        Plain data: ``runs``, each with ``folder``, ``created``, ``environment``, and ``differences`` from the first:
        ``{name: [its value there, its value here]}``. And ``cells``, each with ``id``, ``model``, ``shape``, ``label``,
        ``precision`` and ``runs``: for each run the cell (``None`` where it has none) and ``change`` from the first:
        ``p50`` over the first's p50, the ``interval`` of that, ``verdict`` (:func:`_change`).

    Raises:
        SpecError: a run has no cell of the first.
    """
    first, *others = runs
    known = {cell["id"] for cell in first.document["cells"]}
    for other in others:
        if not known & {cell["id"] for cell in other.document["cells"]}:
            raise SpecError(
                f"{other.folder} has no cell of {first.folder}: cells are found again by their model/shape/backend/"
                f"precision. There they are {_some(first)}; here {_some(other)}"
            )
    settings = [dict(_settings(run)) for run in runs]
    return {
        "schema": SCHEMA,
        "runs": [
            {
                "folder": run.folder,
                "created": run.run["created"],
                "environment": run.document["environment"],
                "differences": _differences(settings[0], here),
            }
            for run, here in zip(runs, settings, strict=True)
        ],
        "cells": list(_cells(runs)),
    }


def worse(comparison: Mapping[str, Any], percent: float) -> list[tuple[str, int, str]]:
    """The cells that were right in the first run and got worse: id, number of the run (from 0), and how.

    Args:
        comparison: what :func:`compare` gives.
        percent: how much a p50 may grow; beyond that, it got worse where the intervals are apart.
    """
    found = []
    for cell in comparison["cells"]:
        if cell["runs"][0] is None or cell["runs"][0]["status"] != "ok":
            continue
        for number, each in enumerate(cell["runs"]):
            change = each and each["change"]
            if each is None or each["status"] != "ok":
                found.append((cell["id"], number, f"was ok and is {each['status'] if each else 'not there'}"))
            elif change and change["interval"][0] > 1 and change["p50"] > 1 + percent / 100:
                doubt = "; disturbed: measure again" if change["verdict"] == "disturbed" else ""
                found.append((cell["id"], number, f"p50 is {change['p50']:.2f} x what it was{doubt}"))
    return found


def _cells(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    by_id = [{cell["id"]: cell for cell in run.document["cells"]} for run in runs]
    for name in dict.fromkeys(name for cells in by_id for name in cells):
        first, *others = (cells.get(name) for cells in by_id)
        known = next(each for each in (first, *others) if each)
        yield {
            **{key: known[key] for key in ("id", "model", "shape", "label", "precision")},
            "runs": [
                first and {**first, "change": None},
                *(each and {**each, "change": _change(first, each)} for each in others),
            ],
        }


def _change(first: view.Cell | None, cell: view.Cell) -> dict[str, Any] | None:
    """How the median of a cell differs from the first run's; ``None`` where one of the two was not measured, or was not
    right.

    The verdict is ``disturbed`` where something disturbed one of the two; ``slower`` or ``faster`` where their
    intervals are apart, and their medians by more than two processes of one cell may be; else ``same``.
    """
    if first is None or not (first["status"] == cell["status"] == "ok"):
        return None
    before, now = view.p(first, 50), view.p(cell, 50)
    if not before or not now:
        return None
    (least_before, most_before), (least, most) = view.interval(first), view.interval(cell)
    ratio, lowest, highest = now / before, least / most_before, most / least_before
    if view.disturbed(first) or view.disturbed(cell):
        verdict = "disturbed"
    elif lowest > 1 and ratio > _PROCESSES:
        verdict = "slower"
    elif highest < 1 and ratio < 1 / _PROCESSES:
        verdict = "faster"
    else:
        verdict = "same"
    return {"p50": ratio, "interval": [lowest, highest], "verdict": verdict}


def _settings(run: Run) -> Iterator[tuple[str, Any]]:
    """What would explain other figures: the machine, its software, what was fed, and how it was measured."""
    yield from _flat({name: run.run["spec"].get(name) for name in _SPEC})
    yield from _flat(
        {
            name: {**model, "path": None, "checkpoint": None}  # where it lay; its fingerprint says what it was
            for name, model in run.run["spec"]["models"].items()
        },
        "models",
    )
    for name in ("shapes", "backends"):
        yield from _flat(run.run["spec"][name], name)
    for cell in run.document["cells"]:
        if cell["provenance"]:
            yield f"models.{cell['model']}.fingerprint", cell["provenance"]["fingerprint"]
    yield from _flat(run.document["environment"])


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Nested data as places and plain values."""
    kind = place.rpartition(".")[2]
    if kind in _MOMENTARY:
        return
    name = _BY.get(kind)
    if isinstance(value, list) and value and all(isinstance(each, Mapping) and name in each for each in value):
        value = {each[name]: each for each in value}
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{place}.{key}".removeprefix("."))
    else:
        yield place, value


def _differences(first: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What both say and say differently, and what one of them alone has installed."""
    names = [name for name in first if name in here or ".packages." in f".{name}"]
    names += [name for name in here if name not in first and ".packages." in f".{name}"]
    return {name: [first.get(name), here.get(name)] for name in names if first.get(name) != here.get(name)}


def _some(run: Run) -> str:
    return view.named(run.document["cells"], lambda cell: str(cell["id"]))
