"""The folder of a run: what is in it, how it is written, and how it is read back.

::

    run.json                              the spec with every default, the environment, the cells and their keys
    models/MODEL/                         job.json, result.json, log.txt
    references/MODEL/SHAPE/               the same, and feeds.npz, outputs.npz
    cells/MODEL/SHAPE/LABEL/PRECISION/    the same, and samples.npz

Every file under its final name is whole: it is written beside its place, flushed to the disk and renamed. A
folder without a ``result.json`` is of a job that did not end; a result counts only where its key is the one that
``run.json`` has for it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from isorun.errors import SpecError
from isorun.system.cache import write_atomically

SCHEMA = 1
STATUSES = {
    "ok": "ran, and its outputs are right",
    "parity-failed": "ran, and its outputs are off by more than the tolerance, or not finite",
    "unavailable": "the backend cannot do here what is asked",
    "unsupported": "the backend lacks an operator of the model",
    "error": "isorun or the runtime reported an error",
    "crashed": "the process, or its worker in an environment, died of a signal",
    "timeout": "it was stopped at its time limit",
    "skipped": "its model, its reference or its environment could not be had",
    "pending": "it has not run yet",
}
"""What became of a cell."""

MEASURED = ("ok", "parity-failed")
"""The statuses of cells that need not run again."""

LACKING = ("unavailable", "unsupported")
"""The statuses of cells that this machine or this backend cannot have: nothing went wrong."""

_RUN = "run.json"
_RESULT = "result.json"
_LOCK = ".lock"


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @contextmanager
    def writing(self, *, resume: bool) -> Iterator[None]:
        """Take the folder for a run, alone.

        Raises:
            SpecError: it cannot be written to, another run is writing to it, or it holds results and ``resume``
                is not set.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / _LOCK)
            lock.acquire(timeout=0)
        except Timeout:
            raise SpecError(f"Another run is writing to {self.path}; wait for it, or choose another --out") from None
        except OSError as error:
            raise SpecError(f"{self.path} cannot be written to ({error}); choose another --out") from error
        try:
            if not resume and (self.path / _RUN).exists():
                raise SpecError(f"{self.path} holds a run; go on with it by --resume, or choose another --out")
            yield
        finally:
            lock.release()

    def folder(self, kind: str, name: str) -> Path:
        """The folder of a job: ``kind`` is ``models``, ``references`` or ``cells``."""
        return self.path / kind / name

    def start(self, kind: str, name: str) -> Path:
        """The same, empty."""
        folder = self.folder(kind, name)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    def write(self, kind: str, name: str, key: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a job's result, and return it as it is kept."""
        kept = {"schema": SCHEMA, "key": key, **result}
        write_json(self.folder(kind, name) / _RESULT, kept)
        return kept

    def result(self, kind: str, name: str, key: str | None) -> dict[str, Any] | None:
        """A job's result, if there is one of that key."""
        found = self.any_result(kind, name)
        return found if found is not None and key is not None and found.get("key") == key else None

    def any_result(self, kind: str, name: str) -> dict[str, Any] | None:
        """A job's result, of whatever key. One that was damaged after it was written is none."""
        try:
            found = json.loads((self.folder(kind, name) / _RESULT).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Keep what is known of the run as a whole."""
        write_json(self.path / _RUN, {"schema": SCHEMA, **run})

    def run(self) -> dict[str, Any]:
        """What is known of the run as a whole.

        Raises:
            SpecError: there is none in this folder, or one of another schema.
        """
        path = self.path / _RUN
        if not path.is_file():
            raise SpecError(f"{self.path} holds no run of a matrix: there is no {_RUN} in it")
        try:
            run: dict[str, Any] = json.loads(path.read_text())
        except ValueError as error:
            raise SpecError(f"{path} is no JSON ({error}); it was changed after it was written") from error
        if not isinstance(run, dict):
            raise SpecError(f"{path} holds no run; it was changed after it was written")
        if run.get("schema") != SCHEMA:
            raise SpecError(f"{path} is of schema {run.get('schema')}; this isorun reads schema {SCHEMA}")
        return run

    def document(self) -> dict[str, Any]:
        """The run as ``report --format json`` prints it: ``schema``, ``environment`` and ``cells``.

        A cell that has not run yet is there too, as ``pending``.
        """
        run = self.run()
        cells = []
        for planned in run["cells"]:
            found = self.result("cells", planned["id"], planned["key"]) or planned
            cells.append({name: value for name, value in found.items() if name not in ("schema", "key")})
        return {"schema": SCHEMA, "environment": run["environment"], "cells": cells}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data as JSON, whole or not at all."""
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
