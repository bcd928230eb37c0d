"""The suite in a process of its own: ``python -m isorun.testing.suite.child EVENTS SETTINGS``.

A backend can end its process or hang. What happens is therefore written down as it happens, a line of JSON for each
event, to a file that :mod:`isorun.testing.suite.runner` reads.
"""

from __future__ import annotations

import json
import re
import sys
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from isorun.isolation.worker.failures import RemoteError
from isorun.testing.suite.proofs import capability_of

SETTINGS: dict[str, Any] = {}
"""Of this run: backend, environment, options and big are for ``by_name.py``; done lists checks to leave out, only the
capabilities that are wanted."""
_MESSAGE_LINES = 12
_ISORUN = Path(__file__).resolve().parents[2]
_FRAME = re.compile(r'File "(.+)", line (\d+)')


class Recorder:
    """A pytest plugin that leaves out what is done already, and writes down what happens."""

    def __init__(self, events: Path) -> None:
        self._events = events.open("a")
        self._capabilities: dict[str, str] = {}
        self._started = 0.0

    def _write(self, **event: Any) -> None:
        print(json.dumps(event), file=self._events, flush=True)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what is to be run, and say what that is."""
        found = {_name(item): _capability(item) for item in items}
        only = SETTINGS["only"]
        if unknown := [each for each in only if each not in found.values()]:
            self._write(event="unknown", capability=unknown[0], known=sorted(set(found.values())))
            pytest.exit("no such capability")
        wanted = {name: of for name, of in found.items() if not only or of in only}
        self._write(event="collected", checks=wanted)
        items[:] = [item for item in items if _name(item) in wanted and _name(item) not in SETTINGS["done"]]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A check begins."""
        self._started = time.monotonic()
        self._write(event="started", check=_of(nodeid))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A part of a check has ended: what came of it, where that says something."""
        report = yield
        if report.when == "call" or not report.passed:
            said = "" if call.excinfo is None else _said(report, call.excinfo.value)
            seconds = time.monotonic() - self._started
            self._write(event="ended", check=_name(item), outcome=report.outcome, seconds=seconds, message=said)
        return report


def _of(nodeid: str) -> str:
    return nodeid.rpartition("::")[2]


def _name(item: pytest.Item) -> str:
    return _of(item.nodeid)


def _capability(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function)
    callspec = getattr(item, "callspec", None)
    return capability_of(item.function, callspec.params if callspec else {})


def _said(report: pytest.TestReport, error: BaseException) -> str:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return reason.removeprefix("Skipped: ")
    text = str(error).strip()
    # What pytest adds to an assertion is the expression again; the message says what it means.
    said = isinstance(error, AssertionError | pytest.fail.Exception)
    text = text.partition("\nassert ")[0] if said else f"{type(error).__name__}: {text}"
    lines = [line for line in text.splitlines() if line.strip()][:_MESSAGE_LINES]
    if not lines:
        place = traceback.extract_tb(error.__traceback__)[-1]
        lines = [f"{type(error).__name__} without a word, from {place.filename}:{place.lineno}"]
    return "\n".join([*lines, *_cause(error)])


def _cause(error: BaseException) -> list[str]:
    """What a wrapped error came from, and where in the backend's own code: that is what its author has to find."""
    cause = error.__cause__
    if cause is None:
        return []
    if isinstance(cause, RemoteError):
        kind, text = cause.type, cause.traceback
    else:
        kind, text = type(cause).__name__, "".join(traceback.format_exception(cause))
    frames = _FRAME.findall(text.rpartition("Traceback (most")[2])
    place = next((f", from {file}:{line}" for file, line in frames if _ISORUN not in Path(file).resolve().parents), "")
    return [f"Its cause: {kind}{place}"]


def main(arguments: list[str]) -> int:
    """Run the suite; the exit code is pytest's."""
    events, settings = arguments
    SETTINGS.update(json.loads(settings))
    empty = Path(events).with_name("pytest.ini")  # whatever pytest is told in the folder that this runs in is not meant
    empty.write_text("[pytest]\n")
    return pytest.main(
        [
            *("-c", str(empty), "--rootdir", str(empty.parent), "--import-mode=importlib", "-p", "no:cacheprovider"),
            str(Path(__file__).with_name("by_name.py")),
        ],
        plugins=[Recorder(Path(events))],
    )


if __name__ == "__main__":
    # by_name.py imports this module by its name: there has to be one of it, not two.
    from isorun.testing.suite import child

    sys.exit(child.main(sys.argv[1:]))
