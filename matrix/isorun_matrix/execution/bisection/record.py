"""What a bisection has found so far, in its folder, so that it can be continued."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isorun.errors import SpecError
from isorun.system.cache import write_atomically
from isorun_matrix.execution.bisection.search import Step
from isorun_matrix.results import reader, records
from isorun_matrix.results.folder import locked, require_new

_RECORD = "bisect.json"


class _Stored(records.Record):
    """What the next session needs of the file."""

    request: dict[str, Any]
    releases: list[str]
    steps: list[Step]


class Record:
    """The folder of a bisection.

    Args:
        folder: created by :meth:`writing` if it does not exist.
        request: what is searched for, as plain data. A bisection is continued only with the same.
        resume: whether to continue the bisection in the folder.

    Attributes:
        releases: all that are searched, the oldest first; empty in a new folder.
        steps: the releases that were judged, in that order.

    Raises:
        SpecError: the folder has a bisection, and ``resume`` is not set or it searches for something else; or has none
            and is not empty, is a file, or is inside a run.
    """

    def __init__(self, folder: Path, request: Mapping[str, Any], *, resume: bool) -> None:
        self._path = folder / _RECORD
        self._request = json.loads(json.dumps(request))
        self.steps: dict[str, Step] = {}
        self.releases: list[str] = []
        if self._path.exists():
            self._read(resume=resume)
        else:
            require_new(folder)

    def _read(self, *, resume: bool) -> None:
        if not resume:
            raise SpecError(f"{self._path.parent} already holds a bisection. Add --resume, or choose another --out")
        stored = reader.read_unversioned(self._path, _Stored)
        if stored.request != self._request:
            names = [name for name in self._request if stored.request.get(name) != self._request[name]]
            raise SpecError(
                f"{self._path.parent} holds the bisection of another {', '.join(names)}. Choose another --out"
            )
        # A skipped release is tried again: the network may have failed, and measured rounds are kept in any case.
        self.steps = {step.release: step for step in stored.steps if step.verdict != "skipped"}
        self.releases = stored.releases

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the folder and store what is known. Raises ``SpecError`` if another process uses it."""
        with locked(self._path.parent):
            self.write()
            yield

    def step(self, release: str, judge: Callable[[str], Step]) -> Step:
        """The step of a release: the one that is stored, else a new one."""
        if release not in self.steps:
            self.steps[release] = judge(release)
            self.write()
        return self.steps[release]

    def write(self, **more: Any) -> None:
        """Store the steps, and ``more``."""
        steps = [asdict(step) for step in self.steps.values()]
        content = {"request": self._request, "releases": self.releases, "steps": steps, **more}
        write_atomically(self._path, (json.dumps(content, indent=1) + "\n").encode())
