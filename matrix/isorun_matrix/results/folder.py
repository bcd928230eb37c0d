"""The folder of a run: what is in it, how it is written, and how it is read back.

::

    run.json                              the spec with every default, the environment, the cells and their keys
    models/MODEL/                         job.json, result.json, log.txt
    references/MODEL/SHAPE/               the same, and feeds.npz, outputs.npz
    cells/MODEL/SHAPE/LABEL/PRECISION/    the same, and samples.npz
    .../failed/                           a later attempt that failed, where the folder above it holds a measurement
    .work/                                the job that runs

Every file under its final name is whole: it is written beside its place, flushed to the disk and renamed. So is every
job: it works in ``.work``, and its folder is renamed into its place with its result. A measured result is replaced only
by another one. A result counts only where its key is the one that ``run.json`` has for it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from isorun.errors import SpecError
from isorun.system.cache import write_atomically
from isorun_matrix.results import records as stored
from isorun_matrix.results.layout import JOB, RESULT, RUN
from isorun_matrix.results.records import SCHEMA

MEASURED = ("ok", "parity-failed")
"""The statuses of cells that need not run again."""

LACKING = ("unavailable", "unsupported")
"""The statuses of cells that this machine or this backend cannot have: nothing went wrong."""

Kind = Literal["models", "references", "cells"]
_LOCK = ".lock"
_WORK = ".work"
_FAILED = "failed"
_OLD = ".old"  # the end of the name of a folder that is being replaced


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @contextmanager
    def writing(self, *, resume: bool) -> Iterator[None]:
        """Lock the folder for one run.

        Raises:
            SpecError: it cannot be written to, another run is writing to it, it holds results and ``resume`` is not
                set, or it holds files that are not a run's.
        """
        try:
            self._check(resume=resume)
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / _LOCK)
            lock.acquire(timeout=0)
        except Timeout:
            raise SpecError(f"Another run is writing to {self.path}; wait for it, or choose another --out") from None
        except OSError as error:
            raise SpecError(f"{self.path} cannot be written to ({error}); choose another --out") from error
        try:
            self._check(resume=resume)  # again: another run may have ended between the check and the lock
            self._recover()
            yield
        finally:
            lock.release()

    def _check(self, *, resume: bool) -> None:
        """Refuse a folder in which a run could overwrite or remove what is not its own."""
        for path in (self.path, self.path / _LOCK):
            if path.is_symlink():
                raise SpecError(
                    f"{path} is a symbolic link. A run replaces files in its folder, and does not do so through a "
                    "link. Choose another --out"
                )
        if self.has_run():
            self.run()
            if not resume:
                raise SpecError(f"{self.path} holds a run; go on with it by --resume, or choose another --out")
            return
        # A run that stopped before it wrote run.json leaves its lock, and a part of run.json at most.
        own = (_LOCK, f".{RUN}.")
        if foreign := next((each.name for each in _listed(self.path) if not each.name.startswith(own)), None):
            raise SpecError(
                f"{self.path} is not empty and is not the folder of a run: it holds {foreign!r} and no {RUN}. A run "
                "could overwrite files there. Choose a new or empty folder for --out"
            )

    def _recover(self) -> None:
        """Finish the replacement of a folder that a killed process left half done."""
        replaced = [old for kind in get_args(Kind) for old in (self.path / kind).rglob(f".*{_OLD}")]
        for old in filter(stored.is_job, replaced):
            self._require_own(old)
            place = old.with_name(old.name.removeprefix(".").removesuffix(_OLD))
            if (place / RESULT).is_file():
                shutil.rmtree(old)
            else:
                old.rename(place)

    def has_run(self) -> bool:
        """Whether there is a ``run.json``, of whatever content."""
        return (self.path / RUN).exists()

    def folder(self, kind: Kind, name: str) -> Path:
        """The folder of a job."""
        return self.path / kind / name

    def require_own(self, kind: Kind, name: str) -> None:
        """Check that the folder of a job may be replaced.

        Raises:
            SpecError: it holds files and no record of a job, or it is behind a symbolic link.
        """
        self._require_own(self.folder(kind, name))

    def _require_own(self, place: Path) -> None:
        below = place.relative_to(self.path)
        for path in (self.path / part for part in reversed([below, *below.parents])):
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                what = "a symbolic link" if path.is_symlink() else "a file"
                raise SpecError(f"{path} is {what}, where a run keeps a folder. Remove it, or choose another --out")
        # A process that was killed while it wrote a record leaves a part of it.
        parts = (f".{JOB}.", f".{RESULT}.")
        if any(not each.name.startswith(parts) for each in _listed(place)) and not stored.is_job(place):
            raise SpecError(
                f"{place} holds files and no {JOB} or {RESULT} of a run, which would replace the folder. Move it away, "
                "or choose another --out"
            )

    def start(self) -> Path:
        """An empty folder for a job to work in."""
        work = self.path / _WORK
        self._require_own(work)
        if work.exists():
            shutil.rmtree(work)
        work.mkdir()
        return work

    def write(self, kind: Kind, name: str, key: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the folder of the job that was started, with its result, and return the result as it is kept.

        A result that is not of a measurement does not replace one that is: it goes below it.
        """
        kept = {"schema": SCHEMA, "key": key, **result}
        write_json(self.path / _WORK / RESULT, kept)
        place = self.folder(kind, name)
        if kept["status"] not in MEASURED and self.measured(kind, name):
            place = place / _FAILED
        self._replace(place, self.path / _WORK)
        return kept

    def _replace(self, place: Path, work: Path) -> None:
        self._require_own(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        old = place.with_name(f".{place.name}{_OLD}")
        if place.exists():
            place.rename(old)
        work.rename(place)
        if old.exists():
            shutil.rmtree(old)

    def result(self, kind: Kind, name: str, key: str | None) -> dict[str, Any] | None:
        """A job's result of that key, if there is one.

        Raises:
            SpecError: the file is damaged, or is not a result.
        """
        place = self.folder(kind, name)
        found = (stored.read_result(each / RESULT, kind) for each in (place, place / _FAILED))
        return next((each for each in found if each is not None and each["key"] == key), None)

    def measured(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """A job's result that came to an end, of whatever key.

        Raises:
            SpecError: the file is damaged, or is not a result.
        """
        found = stored.read_result(self.folder(kind, name) / RESULT, kind)
        return found if found is not None and found["status"] in MEASURED else None

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Keep what is known of the run as a whole."""
        write_json(self.path / RUN, {"schema": SCHEMA, **run})

    def run(self) -> dict[str, Any]:
        """What is known of the run as a whole.

        Raises:
            SpecError: there is none in this folder, it is damaged, or it is of another schema.
        """
        if not self.has_run():
            raise SpecError(f"{self.path} holds no run of a matrix: there is no {RUN} in it")
        return stored.read_run(self.path / RUN)

    def document(self) -> dict[str, Any]:
        """The run as ``report --format json`` prints it: ``schema``, ``environment`` and ``cells``.

        A cell that has not run yet is there too, as ``pending``.

        Raises:
            SpecError: this is not the folder of a run, or one of its files is damaged.
        """
        run = self.run()
        cells = []
        for planned in run["cells"]:
            cell = {**(self.result("cells", planned["id"], planned["key"]) or planned), "kept": planned.get("kept")}
            cells.append({name: value for name, value in cell.items() if name not in ("schema", "key", "request")})
        return {"schema": SCHEMA, "environment": run["environment"], "cells": cells}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data as JSON, whole or not at all."""
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def _listed(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())
