"""A run of several machines: a folder with the run of each in ``machines/NAME``, every one complete by itself."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from isorun.errors import SpecError
from isorun_matrix.results.folder import RunFolder, require_distinct, require_new
from isorun_matrix.results.layout import FEEDS, MACHINES
from isorun_matrix.results.records import Run
from isorun_matrix.spec.field_types import Name


@dataclass(frozen=True)
class MachineRuns:
    """The runs of several machines.

    Attributes:
        runs: by the name of the machine.
        feeds: for each machine, the SHA-256 of the feeds of each cell, by its id.
    """

    runs: Mapping[str, Run]
    feeds: Mapping[str, Mapping[str, str]]


def is_of_several(path: Path) -> bool:
    """Whether a folder is that of a run of several machines."""
    return (path / MACHINES).is_dir() and not RunFolder(path).has_run()


def folders(path: Path) -> dict[str, RunFolder]:
    """The folders of the machines by their names; for the run of one machine, its folder alone. Raises ``SpecError`` if
    no machine has results."""
    if not is_of_several(path):
        return {path.name: RunFolder(path)}
    places = (place for place in sorted((path / MACHINES).iterdir()) if not place.name.startswith("."))
    folders = {place.name: RunFolder(place) for place in places if RunFolder(place).has_run()}
    if not folders:
        raise SpecError(f"No machine in {path / MACHINES} has results yet. Continue the run with --resume.")
    return folders


def read(path: Path) -> MachineRuns:
    """The runs in a folder, in the order of the spec's machines, others after them. Raises ``SpecError`` if it has
    none, or a file is damaged."""
    own = folders(path)
    runs_by_name = {name: folder.run() for name, folder in own.items()}
    names = dict.fromkeys(name for run in runs_by_name.values() for name in run.spec.machines if name in runs_by_name)
    runs = {name: runs_by_name[name] for name in (names | dict.fromkeys(runs_by_name))}
    return MachineRuns(runs, {name: _feeds(own[name]) for name in runs})


def merge(folders: Sequence[str], out: Path) -> MachineRuns:
    """Copy the runs of several machines into one folder.

    Args:
        folders: ``NAME=DIR``, or ``DIR`` if the name of the folder is that of the machine.
        out: the folder to create.

    Raises:
        SpecError: a folder is not that of a run, a name is invalid or appears twice, the runs have no cell in common,
            or ``out`` is not empty, or is inside a run.
    """
    named: dict[str, RunFolder] = {}
    for argument in folders:
        name, separator, place = argument.partition("=")
        folder = Path(place) if separator else Path(argument).absolute()
        name = name if separator else folder.name
        try:
            TypeAdapter(Name).validate_python(name)
        except ValidationError:
            raise SpecError(f"{name!r} cannot name a machine. Give another name as NAME={folder}") from None
        if name in named:
            raise SpecError(f"Two machines have the name {name!r}. Give one of them another name as NAME={folder}")
        named[name] = RunFolder(folder)
    runs = {name: folder.run() for name, folder in named.items()}
    require_distinct(runs.values())
    cells = {name: {cell.id for cell in run.cells} for name, run in runs.items()}
    first, *others = cells
    for second in others:
        if cells[first].isdisjoint(cells[second]):
            raise SpecError(f"The runs of {first} and {second} have no cell in common. Run the same spec on both.")
    out = out.absolute()
    require_new(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as work:
        whole = Path(work) / "run"
        for name, source in named.items():
            shutil.copytree(source.path, whole / MACHINES / name, ignore=shutil.ignore_patterns(".*"))
        whole.replace(out)
    return read(out)


def _feeds(folder: RunFolder) -> dict[str, str]:
    """The digest of the feeds of each measured cell: those of the reference that its last round was compared with."""
    digests = {}
    for cell in folder.record().cells:
        reference = folder.reference_of(cell)
        if reference is not None and FEEDS in reference.files:
            digests[cell.id] = reference.files[FEEDS]
    return digests
