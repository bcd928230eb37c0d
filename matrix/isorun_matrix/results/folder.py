"""The folder of a run: its layout (``docs/matrix-results.md`` shows it), locking, and adding results safely.

KEY in a path is the start of a digest of all that decides a result: settings, model, versions, machine. So results
under another key stay where they are, and never mix. Every file under its final name is complete: it is written under
another name, flushed to the disk and renamed. A job's folder is in ``.work`` until it ends.
The folder of a round is never replaced.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from isorun.errors import SpecError
from isorun.system.cache import sha256, write_atomically
from isorun_matrix.results import cells, reader
from isorun_matrix.results.layout import JOB, LOG, MACHINES, RESULT, RUN, SAMPLES
from isorun_matrix.results.records import (
    MEASURED,
    SCHEMA,
    CellResult,
    JobResult,
    LoadResult,
    PlannedCell,
    RecordedSpec,
    ReferenceResult,
    RoundResult,
    Run,
    RunRecord,
    TrialResult,
)
from isorun_matrix.text import encodable

Result = TypeVar("Result", bound=JobResult[Any])

_LOCK = ".lock"
_WORK = ".work"
_TRIAL = "trial"
_ROUND = "round-"
_KEY = 16  # characters of a key in a path


class RunFolder:
    """The folder of one run. ``written`` has the folders (as in :meth:`jobs`) that were written since it was
    cleared."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.written: list[str] = []
        self._started = 0

    @contextmanager
    def writing(self, *, resume: bool) -> Iterator[None]:
        """Lock the folder for one run.

        Raises:
            SpecError: it is not writable, another run is using it, it holds results and ``resume`` is not set, or it
                holds files that are not a run's.
        """
        with locked(self.path, lambda: self._check(resume=resume)):
            yield

    def _check(self, *, resume: bool) -> None:
        """Reject a folder in which a run could overwrite or remove files of others."""
        _require_no_link(self.path / _LOCK)
        if not self.has_run():
            # A run that stopped before it wrote run.json leaves its lock, and a part of run.json at most.
            require_new(self.path, _LOCK, f".{RUN}.")
            return
        _require_no_link(self.path)
        self.record()
        if not resume:
            raise SpecError(f"{self.path} already holds a run. Add --resume, or choose another --out.")

    def has_run(self) -> bool:
        """Whether there is a ``run.json``, of any content."""
        return (self.path / RUN).exists()

    def model(self, name: str) -> Path:
        """The folder of a model's job."""
        return self.path / "models" / name

    def reference(self, name: str, key: str) -> Path:
        """The folder of a reference."""
        return self.path / "references" / name / key[:_KEY]

    def cell(self, name: str) -> Path:
        """The folder of a cell, with the results of every key."""
        return self.path / "cells" / name

    def require_folder(self, place: Path) -> None:
        """Raise ``SpecError`` for a folder whose path contains a symbolic link or a file."""
        below = place.relative_to(self.path)
        for path in (self.path / part for part in reversed([below, *below.parents])):
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                what = "a symbolic link" if path.is_symlink() else "a file"
                raise SpecError(f"{path} is {what}; expected a folder. Remove it, or choose another --out.")

    def require_own(self, place: Path) -> None:
        """Raise ``SpecError`` for the folder of a job that holds files and no record of one, or with a symbolic link in
        its path."""
        self.require_folder(place)
        # A process that was killed while it wrote a record leaves a part of it.
        parts = (f".{JOB}.", f".{RESULT}.")
        if any(not path.name.startswith(parts) for path in _listed(place)) and not reader.is_job(place):
            raise SpecError(
                f"{place} holds files, but no {JOB} or {RESULT} of a run, which would replace the folder. Move it, or "
                "choose another --out."
            )

    def start(self, job: Mapping[str, Any] | None = None) -> Path:
        """An empty folder for a job to work in, which holds ``job``. The first removes what an earlier run left."""
        works = self.path / _WORK
        self.require_folder(works)
        if not self._started:
            for left in _listed(works):
                self.require_own(left)
            if works.exists():
                shutil.rmtree(works)
        self._started += 1
        work = works / str(self._started)
        work.mkdir(parents=True)
        if job is not None:
            write_atomically(work / JOB, _encoded(job))
        return work

    def load_folder(self, name: str, key: str, scenario: Mapping[str, Any]) -> Path:
        """The folder of a cell in a load scenario."""
        described = {member: value for member, value in scenario.items() if member != "time_limit"}
        digest = sha256(json.dumps(described, sort_keys=True).encode())[:8]
        return self._keyed(name, key) / f"load-{scenario['name']}-{digest}"

    def write(self, work: Path, place: Path, result: Result) -> Result:
        """Move the folder that a job worked in to its place, with its result."""
        # A process that a runtime left behind may still write to the log.
        paths = (path for path in sorted(work.iterdir()) if path.is_file() and path.name != LOG)
        files = {path.name: sha256(path.read_bytes()) for path in paths}
        write_atomically(work / RESULT, _sealed({**result.model_dump(mode="json"), "files": files}))
        self._move(work, place)
        self.written.append(str(place.relative_to(self.path)))
        return result

    def _move(self, work: Path, place: Path) -> None:
        self.require_own(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():  # no measurement: those have folders of their own
            shutil.rmtree(place)
        work.rename(place)
        if not any(_listed(work.parent)):
            work.parent.rmdir()

    def _keyed(self, name: str, key: str) -> Path:
        return self.cell(name) / key[:_KEY]

    def read(self, place: Path, kind: type[Result]) -> Result | None:
        """The result in the folder of a job; ``None`` if there is none. Raises ``SpecError`` if a file is damaged."""
        return reader.read(place / RESULT, kind) if (place / RESULT).exists() else None

    def reference_of(self, cell: PlannedCell) -> ReferenceResult | None:
        """The reference with which the last round of a cell was compared."""
        if cell.key is None or not (rounds := self.rounds(cell.id, cell.key)):
            return None
        job = reader.job_of(self.round_folder(cell.id, cell.key, rounds[-1].round.number))
        key = str(job["reference_folder"]).rpartition("/")[2]
        return self.read(self.reference(f"{cell.model}/{cell.shape}", key), ReferenceResult)

    def references(self, name: str) -> list[ReferenceResult]:
        """The references of a workload, of every key."""
        places = (self.path / "references" / name).glob(f"*/{RESULT}")
        return [reader.read(place, ReferenceResult) for place in sorted(places)]

    def trial_folder(self, name: str, key: str) -> Path:
        """The folder of the trial of a cell."""
        return self._keyed(name, key) / _TRIAL

    def rounds(self, name: str, key: str) -> list[RoundResult]:
        """A cell in each round so far, in their order."""
        results = [reader.read(place / RESULT, RoundResult) for place in self._measured(name, key)]
        return sorted(results, key=lambda result: result.round.number)

    def round_folder(self, name: str, key: str, number: int) -> Path:
        """The folder of a cell in a round."""
        return self._keyed(name, key) / f"{_ROUND}{number}"

    def last_round(self, names: Iterable[str]) -> int:
        """The highest number of a round of any of these cells, of any key; 0 if there is none."""
        paths = (path for name in names for path in self._round_folders(name))
        return max((int(path.name.removeprefix(_ROUND)) for path in paths), default=0)

    def _round_folders(self, name: str, key: str = "*") -> Iterator[Path]:
        """The folders of a cell's rounds, by default of any key. Copies of them under other names do not count."""
        paths = self.cell(name).glob(f"{key[:_KEY]}/{_ROUND}*")
        return (path for path in paths if path.name.removeprefix(_ROUND).isdecimal())

    def _measured(self, name: str, key: str = "*") -> Iterator[Path]:
        """Those with a result."""
        return (path for path in self._round_folders(name, key) if (path / RESULT).exists())

    def is_measured(self, name: str) -> bool:
        """Whether a cell has rounds of any key."""
        return any(self._measured(name))

    def key_of(self, name: str, request: str) -> str | None:
        """The key of the measurements of a cell with that request; ``None`` if there are none."""
        for place in self._measured(name):
            result = reader.read(place / RESULT, RoundResult)
            if result.request == request and result.status in MEASURED:
                return result.key
        return None

    def write_run(self, run: RunRecord) -> None:
        """Store ``run.json``."""
        write_atomically(self.path / RUN, self.encoded(run))
        self.written.append(".")

    @staticmethod
    def encoded(run: RunRecord) -> bytes:
        """The content of ``run.json``."""
        return _sealed(run.model_dump(mode="json"))

    def run(self) -> Run:
        """The run with all its results. Raises ``SpecError`` if this is not the folder of a run, or a file is
        damaged."""
        record = self.record()
        return Run(
            folder=encodable(str(self.path)),
            created=record.created,
            sessions=len(record.sessions),
            seed=record.seed,
            spec=record.spec,
            environment=record.sessions[-1].environment,
            cells=[self._assembled(planned, record.spec) for planned in record.cells],
        )

    def cell_of_run(self, name: str) -> CellResult:
        """One cell of the run, as :meth:`run`."""
        record = self.record()
        return self._assembled(next(cell for cell in record.cells if cell.id == name), record.spec)

    def _assembled(self, planned: PlannedCell, spec: RecordedSpec) -> CellResult:
        """A cell from its results under the key that belongs to the run."""
        if (key := planned.key) is None:
            return cells.assemble(planned, spec, None, [], [], [])
        rounds = self.rounds(planned.id, key)
        numbers = [result.round.number for result in rounds if result.status in MEASURED]
        samples = [reader.read_samples(self.round_folder(planned.id, key, number) / SAMPLES) for number in numbers]
        loads = [self.read(self.load_folder(planned.id, key, scenario), LoadResult) for scenario in spec.load]
        trial = self.read(self.trial_folder(planned.id, key), TrialResult)
        return cells.assemble(planned, spec, trial, rounds, samples, [load for load in loads if load is not None])

    def jobs(self) -> dict[str, str]:
        """The folders of this run that can be copied elsewhere by themselves, with a digest of their content: those of
        finished jobs, and ``.`` for ``run.json``, which is the first."""
        results = sorted(path for path in self.path.rglob(RESULT) if _WORK not in path.parts)
        files = [self.path / RUN, *results] if self.has_run() else []
        return {str(path.parent.relative_to(self.path)): sha256(path.read_bytes()) for path in files}

    def files(self, place: str) -> dict[str, bytes]:
        """The files of one of the :meth:`jobs`, by name."""
        if place == ".":
            return {RUN: (self.path / RUN).read_bytes()}
        return {path.name: path.read_bytes() for path in sorted((self.path / place).iterdir()) if path.is_file()}

    def receive(self, place: str, files: Mapping[str, bytes]) -> None:
        """Store a folder of another copy of this run: its :meth:`files`. Raises ``SpecError`` for a path that leads out
        of this folder, or is not that of a job."""
        target = self.path / place
        if ".." in target.parts or any(Path(name).name != name for name in files):
            raise SpecError(f"Cannot store {place}: the path leads out of {self.path}")
        self.path.mkdir(parents=True, exist_ok=True)
        if place == ".":
            write_atomically(self.path / RUN, files[RUN])
            return
        self.require_own(target)
        work = self.start()
        for name, content in files.items():
            write_atomically(work / name, content)
        self._move(work, target)

    def record(self) -> RunRecord:
        """``run.json``. Raises ``SpecError`` if this is not the folder of a run, or the file is damaged."""
        if not self.has_run():
            if several := sorted(place.parent for place in self.path.glob(f"{MACHINES}/*/{RUN}")):
                names = " or ".join(map(str, several))
                raise SpecError(f"{self.path} is the run of several machines. Name the folder of one: {names}")
            raise SpecError(f"{self.path} is not the folder of a run: it has no {RUN}")
        return reader.read(self.path / RUN, RunRecord)


@contextmanager
def locked(folder: Path, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Make a folder for results, and lock it for one command. ``check`` is called before, and again under the lock:
    another command may have ended between the two.

    Raises:
        SpecError: it is not writable, or another command is using it; or what ``check`` raises.
    """
    try:
        check()
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK).acquire(timeout=0)
    except Timeout:
        raise SpecError(f"Another command is using {folder}. Wait for it, or choose another --out.") from None
    except OSError as error:
        raise SpecError(f"Cannot write to {folder} ({error}). Choose another --out.") from error
    with lock:
        check()
        yield


def require_new(folder: Path, *own: str) -> None:
    """Raise ``SpecError`` for a folder for new results that is a link or a file, holds files whose names do not start
    with one of ``own``, or is inside a run, of which it would become a part, or below a file."""
    _require_no_link(folder)
    for path in (folder, *folder.resolve().parents):
        if path.exists() and not path.is_dir():
            what = "is" if path == folder else f"cannot be created, since {path} is"
            raise SpecError(f"{folder} {what} a file. Choose another --out.")
    if parent := next((parent for parent in folder.resolve().parents if (parent / RUN).exists()), None):
        raise SpecError(f"{folder} is inside {parent}, the folder of a run. Choose another --out.")
    if foreign := next((path.name for path in _listed(folder) if not path.name.startswith(own)), None):
        raise SpecError(
            f"{folder} is not empty: it holds {foreign!r}, and no results to continue. Choose a new or empty folder "
            "for --out, since results could overwrite files."
        )


def _require_no_link(path: Path) -> None:
    if path.is_symlink():
        raise SpecError(
            f"{path} is a symbolic link. A run replaces files, and does not follow links to do so. Choose another "
            "--out."
        )


def require_distinct(runs: Iterable[Run]) -> None:
    """Raise ``SpecError`` for a run that counts twice: two of the same folder, or with a measurement in common, as
    copies have."""
    known: list[Run] = []
    for run in runs:
        for counted in known:
            if Path(run.folder).resolve() == Path(counted.folder).resolve():
                same = "is the same folder as"
            elif run.measurements & counted.measurements:
                same = "has the same measurements as"
            else:
                continue
            raise SpecError(f"{run.folder} {same} {counted.folder}, and a run counts once. Remove one of them.")
        known.append(run)


def _sealed(members: Mapping[str, Any]) -> bytes:
    content = {"schema": SCHEMA, **members}
    return _encoded({**content, "seal": reader.seal(content)})


def _encoded(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _listed(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())
