"""What runs on a node of a cluster: an actor that prepares a run and passes on its results, and the process of the run.

The run is the one of ``isorun matrix run``, in a process with the priority and the variables that the node was started
with, so that it measures what a run by hand would.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs

from isorun.errors import IsorunError
from isorun.system import subprocesses
from isorun.system.cache import Cache
from isorun_matrix.execution import rerun, runner
from isorun_matrix.execution.cluster import preflight, priority
from isorun_matrix.execution.plan import Choice
from isorun_matrix.execution.progress import Lines
from isorun_matrix.results.folder import RunFolder
from isorun_matrix.results.layout import RUN

Files = Mapping[str, bytes]
Event = dict[str, Any]

_KIND = "shipped"  # of models in the cache


class Node:
    """A machine of a run: an actor. The process that started it has what the node was started with."""

    def __init__(self) -> None:
        self._work = platformdirs.user_state_path("isorun") / "matrix"  # below it when the run is known
        self._folder = RunFolder(self._work)
        self._cache = Cache()
        self._parent = os.getppid()

    def preflight(self, backends: Sequence[str]) -> dict[str, Any]:
        """As :func:`isorun_matrix.execution.cluster.preflight.look` says."""
        return preflight.look(backends, (self._work, self._cache.root), self._parent)

    def prepare(self, run: str, prepared: Mapping[str, Files], stored: Mapping[str, str]) -> set[str]:
        """Receive the prepared run: ``run.json`` and references. Returns the folders that this node lacks, of the
        results that the driver has.

        Args:
            run: identifies the run of a machine, on whatever node: what is left of an earlier session is used.
            prepared: the files of each folder.
            stored: the digests of the results that the driver has.
        """
        self._work /= run
        self._folder = RunFolder(self._work / "run")
        shutil.rmtree(self._work / "prepared", ignore_errors=True)
        folder = RunFolder(self._work / "prepared")
        for place, files in prepared.items():
            folder.receive(place, files)
        return stored.keys() - self._folder.jobs().keys()

    def restore(self, place: str, files: Files) -> None:
        """Receive a result of an earlier session that this node lacks."""
        self._folder.receive(place, files)

    def receive_model(self, fingerprint: str, files: Mapping[str, tuple[str, Sequence[Any]]]) -> bool:
        """Store the files of a model: for each name its SHA-256, and its parts in Ray's object store. Returns whether
        they were not here yet; raises ``IsorunError`` if a file is not the one that was sent."""

        import ray

        def write(folder: Path) -> dict[str, Any]:
            for name, (digest, parts) in files.items():
                hashed = hashlib.sha256()
                with (folder / name).open("wb") as file:
                    for part in parts:
                        content = ray.get(part)
                        hashed.update(content)
                        file.write(content)
                if hashed.hexdigest() != digest:
                    raise IsorunError(f"{name} was corrupted in transit: its SHA-256 differs. Run it again")
            return {}

        is_new = self._cache.get(_KIND, fingerprint) is None
        self._cache.get_or_make(_KIND, fingerprint, write, [fingerprint])
        return is_new

    def run(self, models: Mapping[str, tuple[str, str]], options: Mapping[str, Any], known: Mapping[str, str]) -> Any:
        """Run the prepared run, and yield events and, when a process has ended, the files of its result.

        Args:
            models: for each model of the spec, its fingerprint and the name of its ONNX file.
            options: ``only`` and ``remeasure_disturbed`` of :class:`isorun_matrix.execution.plan.Choice`.
            known: the digests of the results that the driver has.
        """
        paths = {}
        for name, (fingerprint, file) in models.items():
            entry = self._cache.get(_KIND, fingerprint)
            assert entry is not None  # received, and in use by this cache since
            paths[name] = str(entry.folder / file)
        sent = dict(known)
        yield from self._results(sent)
        read, write = os.pipe()
        request = json.dumps({"parent": self._parent, "models": paths, "options": dict(options)})
        command = subprocesses.python_module(__name__, str(self._work), str(write), request)
        with subprocesses.Child(command, env=priority.variables(self._parent), pass_fds=[write]) as child:
            os.close(write)
            with os.fdopen(read) as events:
                for line in events:
                    event = json.loads(line)
                    for place in event.pop("written"):
                        yield {"place": place, "files": self._folder.files(place)}
                    yield event
            ended = child.wait()
        yield from self._results(sent)
        if not ended.ok:
            yield {"failed": ended.log.strip() or f"the run {ended.how}"}

    def clear(self) -> None:
        """Remove the run from this node: the driver has all of it."""
        shutil.rmtree(self._work)

    def _results(self, sent: dict[str, str]) -> Iterator[Event]:
        """The results that were not sent yet; ``sent`` receives their digests."""
        for place, digest in self._folder.jobs().items():
            if sent.get(place) != digest:
                sent[place] = digest
                yield {"place": place, "files": self._folder.files(place)}


class _Events(Lines):
    """Passes the events of a run on, one a line."""

    def __init__(self, descriptor: int, folder: RunFolder) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._folder = folder

    def _show(self, **event: Any) -> None:
        event["written"] = list(dict.fromkeys(self._folder.written))
        self._folder.written.clear()
        content = memoryview((json.dumps(event) + "\n").encode())
        while content:
            content = content[os.write(self._descriptor, content) :]


def _main(folder: str, descriptor: str, request: str) -> None:
    """The process of the run."""
    received = json.loads(request)
    priority.adopt(received["parent"])
    prepared = RunFolder(Path(folder) / "prepared")
    try:
        models = [f"{name}={path}" for name, path in received["models"].items()]
        spec, fingerprints = rerun.load(prepared.path / RUN, models)
        choice = Choice(resume=True, fingerprints=fingerprints, prepared=prepared, **received["options"])
        out = RunFolder(Path(folder) / "run")
        runner.run(spec, prepared.path / RUN, out, _Events(int(descriptor), out), choice)
    except IsorunError as error:
        sys.exit(str(error))
    except OSError as error:  # a full disk, whose error names no file
        sys.exit(f"{error} (in {folder})")


if __name__ == "__main__":
    _main(*sys.argv[1:])
