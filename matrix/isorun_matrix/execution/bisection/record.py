"""What a bisection has found so far, in its folder, so that it can be continued."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from isorun.errors import SpecError
from isorun.system import json_files
from isorun.system.cache import write_atomically
from isorun_matrix.execution.bisection.search import Step
from isorun_matrix.results.folder import require_outside_runs

_RECORD = "bisect.json"


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
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SpecError(f"{folder} is not empty and has no {_RECORD}. Choose another --out")
        else:
            require_outside_runs(folder)

    def _read(self, *, resume: bool) -> None:
        if not resume:
            raise SpecError(f"{self._path.parent} already holds a bisection. Add --resume, or choose another --out")
        try:
            content = json_files.read(self._path)
            steps = [Step(**step) for step in content["steps"]]
            request, self.releases = content["request"], [*map(str, content["releases"])]
        except (ValueError, TypeError, KeyError) as error:
            raise SpecError(f"{self._path} is damaged ({error}). Choose another --out") from error
        if request != self._request:
            names = [name for name in self._request if request.get(name) != self._request[name]]
            raise SpecError(
                f"{self._path.parent} holds the bisection of another {', '.join(names)}. Choose another --out"
            )
        # A skipped release is tried again: the network may have failed, and measured rounds are kept in any case.
        self.steps = {step.release: step for step in steps if step.verdict != "skipped"}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the folder and store what is known. Raises ``SpecError`` if another process uses it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(self._path.with_name(".lock")).acquire(timeout=0)
        except Timeout:
            raise SpecError(f"Another bisection is using {self._path.parent}. Choose another --out") from None
        with lock:
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
