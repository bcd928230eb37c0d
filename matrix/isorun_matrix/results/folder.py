"""The folder of a run: its layout, locking, and replacing results safely.

::

    run.json                              the spec with every default, the environment, the cells and their keys
    models/MODEL/                         job.json, result.json, log.txt
    references/MODEL/SHAPE/               the same, and feeds.npz, outputs.npz
    cells/MODEL/SHAPE/LABEL/PRECISION/    the same, and samples.npz
    .../failed/                           a later attempt that failed, where the folder above it holds a measurement
    .work/                                the job that runs

Every file under its final name is complete: it is written under another name, flushed to the disk and renamed. A job
works in ``.work``, which is renamed when it has a result. Only a measurement replaces a measurement. A result belongs
to the run if its key is the one in ``run.json``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from filelock import FileLock, Timeout

from isorun.errors import SpecError
from isorun.system.cache import write_atomically
from isorun_matrix.results import reader
from isorun_matrix.results.layout import JOB, RESULT, RUN
from isorun_matrix.results.records import (
    MEASURED,
    SCHEMA,
    CellResult,
    ModelResult,
    PlannedCell,
    ReferenceResult,
    Run,
    RunRecord,
)
from isorun_matrix.text import encodable

Kind = Literal["models", "references", "cells"]
Result = TypeVar("Result", ModelResult, ReferenceResult, CellResult)
_KINDS: dict[type[Any], Kind] = {ModelResult: "models", ReferenceResult: "references", CellResult: "cells"}
_LOCK = ".lock"
_WORK = ".work"
_FAILED = "failed"
_OLD = ".old"  # suffix of a folder that is being replaced


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @contextmanager
    def writing(self, *, resume: bool) -> Iterator[None]:
        """Lock the folder for one run.

        Raises:
            SpecError: it is not writable, another run is using it, it holds results and ``resume`` is not set, or it
                holds files that are not a run's.
        """
        try:
            self._check(resume=resume)
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / _LOCK)
            lock.acquire(timeout=0)
        except Timeout:
            raise SpecError(f"Another run is using {self.path}. Wait for it, or choose another --out.") from None
        except OSError as error:
            raise SpecError(f"Cannot write to {self.path} ({error}). Choose another --out.") from error
        try:
            self._check(resume=resume)  # again: another run may have ended between the check and the lock
            self._recover()
            yield
        finally:
            lock.release()

    def _check(self, *, resume: bool) -> None:
        """Reject a folder in which a run could overwrite or remove files of others."""
        for path in (self.path, self.path / _LOCK):
            if path.is_symlink():
                raise SpecError(
                    f"{path} is a symbolic link. A run replaces files, and does not follow links to do so. Choose "
                    "another --out."
                )
        if self.has_run():
            self._record()
            if not resume:
                raise SpecError(f"{self.path} already holds a run. Add --resume, or choose another --out.")
            return
        # A run that stopped before it wrote run.json leaves its lock, and a part of run.json at most.
        own = (_LOCK, f".{RUN}.")
        if foreign := next((path.name for path in _listed(self.path) if not path.name.startswith(own)), None):
            raise SpecError(
                f"{self.path} is not the folder of a run: it holds {foreign!r} and no {RUN}. A run could overwrite "
                "files in it. Choose a new or empty folder for --out."
            )

    def _recover(self) -> None:
        """Complete the replacement of a folder that a killed process left unfinished."""
        replaced = [old for kind in get_args(Kind) for old in (self.path / kind).rglob(f".*{_OLD}")]
        for old in filter(reader.is_job, replaced):
            self._require_own(old)
            place = old.with_name(old.name.removeprefix(".").removesuffix(_OLD))
            if (place / RESULT).is_file():
                shutil.rmtree(old)
            else:
                old.rename(place)

    def has_run(self) -> bool:
        """Whether there is a ``run.json``, of any content."""
        return (self.path / RUN).exists()

    def folder(self, kind: Kind, name: str) -> Path:
        """The folder of a job."""
        return self.path / kind / name

    def require_own(self, kind: Kind, name: str) -> None:
        """Check that the folder of a job may be replaced.

        Raises:
            SpecError: it holds files and no record of a job, or its path contains a symbolic link.
        """
        self._require_own(self.folder(kind, name))

    def _require_own(self, place: Path) -> None:
        below = place.relative_to(self.path)
        for path in (self.path / part for part in reversed([below, *below.parents])):
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                what = "a symbolic link" if path.is_symlink() else "a file"
                raise SpecError(f"{path} is {what}; expected a folder. Remove it, or choose another --out.")
        # A process that was killed while it wrote a record leaves a part of it.
        parts = (f".{JOB}.", f".{RESULT}.")
        if any(not path.name.startswith(parts) for path in _listed(place)) and not reader.is_job(place):
            raise SpecError(
                f"{place} holds files, but no {JOB} or {RESULT} of a run, which would replace the folder. Move it, or "
                "choose another --out."
            )

    def start(self, job: Mapping[str, Any] | None = None) -> Path:
        """An empty folder for a job to work in, which holds ``job``."""
        work = self.path / _WORK
        self._require_own(work)
        if work.exists():
            shutil.rmtree(work)
        work.mkdir()
        if job is not None:
            _write_json(work / JOB, job)
        return work

    def write(self, name: str, result: Result) -> Result:
        """Store the folder of the job that was started, with its result.

        If it replaces a measurement and is none, it goes below it.
        """
        kind = _KINDS[type(result)]
        _write_json(self.path / _WORK / RESULT, {"schema": SCHEMA, **result.model_dump(mode="json")})
        place = self.folder(kind, name)
        if result.status not in MEASURED and self.measured(type(result), name):
            place = place / _FAILED
        self._replace(place, self.path / _WORK)
        return result

    def _replace(self, place: Path, work: Path) -> None:
        self._require_own(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        old = place.with_name(f".{place.name}{_OLD}")
        if place.exists():
            place.rename(old)
        work.rename(place)
        if old.exists():
            shutil.rmtree(old)

    def result(self, kind: type[Result], name: str, key: str | None) -> Result | None:
        """The result of a job with that key, if there is one.

        Raises:
            SpecError: the file is damaged.
        """
        place = self.folder(_KINDS[kind], name)
        for path in (place / RESULT, place / _FAILED / RESULT):
            if key is not None and path.exists() and (result := reader.read(path, kind)).key == key:
                return result
        return None

    def measured(self, kind: type[Result], name: str) -> Result | None:
        """The measurement of a job, of any key.

        Raises:
            SpecError: the file is damaged.
        """
        path = self.folder(_KINDS[kind], name) / RESULT
        result = reader.read(path, kind) if path.exists() else None
        return result if result is not None and result.status in MEASURED else None

    def write_run(self, run: RunRecord) -> None:
        """Store ``run.json``."""
        _write_json(self.path / RUN, {"schema": SCHEMA, **run.model_dump(mode="json")})

    def run(self) -> Run:
        """The run with all its results.

        Raises:
            SpecError: this is not the folder of a run, or one of its files is damaged.
        """
        record = self._record()
        return Run(
            folder=encodable(str(self.path)),
            created=record.created,
            spec=record.spec,
            environment=record.environment,
            cells=[self._cell(planned) for planned in record.cells],
        )

    def _cell(self, planned: PlannedCell) -> CellResult:
        result = self.result(CellResult, planned.id, planned.key)
        if result is None:
            return CellResult(status="pending", **planned.model_dump())
        return result.model_copy(update={"kept": planned.kept})

    def _record(self) -> RunRecord:
        if not self.has_run():
            raise SpecError(f"{self.path} is not the folder of a run: it has no {RUN}")
        return reader.read(self.path / RUN, RunRecord)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def _listed(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())
