"""A pytest plugin that selects the checks and records what happens, for :mod:`isorun_conformance.runner`.

A backend can crash or hang its process. Each event is therefore written as it happens, as a line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import time
import traceback
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

import isorun
import isorun_conformance
from isorun.errors import IsorunError
from isorun.isolation.worker.failures import RemoteError
from isorun.plugin import faults
from isorun_conformance import inherited_state
from isorun_conformance.checks.base import capability_of
from isorun_conformance.known_failures import class_names

SETTINGS_VARIABLE = "ISORUN_CONFORMANCE"
_MESSAGE_LINES = 12
_OF_NUMPY = ("Arrays are not equal", "Not equal to tolerance")  # numpy.testing on outputs
_OWN = {Path(module.__path__[0]).resolve().parent for module in (isorun, isorun_conformance)}
_FRAME = re.compile(r'File "(.+)", line (\d+)')


@dataclass(frozen=True)
class Settings:
    """What the runner passes to its child process, as JSON in ``$ISORUN_CONFORMANCE``.

    Attributes:
        backend, environment, options, big, device: of the suite.
        only: the capabilities whose checks run; empty for all.
        done: checks that have ended already.
        events: the file to write events to.
    """

    backend: str
    environment: str | None
    options: Mapping[str, Any]
    big: bool
    only: list[str]
    done: list[str]
    events: str
    device: str | None = None


def settings() -> Settings:
    """The settings of this process."""
    return Settings(**json.loads(os.environ[SETTINGS_VARIABLE]))


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest, which loads this module as a plugin."""
    config.pluginmanager.register(_Recorder(settings()))


class _Recorder:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._events = Path(settings.events).open("a", encoding="utf-8")  # noqa: SIM115 - until the process ends
        self._started = 0.0

    def _write(self, **event: Any) -> None:
        print(json.dumps(event), file=self._events, flush=True)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        only = self._settings.only
        capabilities = {_name(item.nodeid): _capability(item) for item in items}
        if unknown := [name for name in only if name not in capabilities.values()]:
            self._write(event="unknown", capability=unknown[0], known=sorted(set(capabilities.values())))
            pytest.exit("unknown capability")
        selected = {name: capability for name, capability in capabilities.items() if not only or capability in only}
        self._write(event="collected", checks=selected, known=list(capabilities), known_failures=_known_failures(items))
        remaining = selected.keys() - set(self._settings.done)
        items[:] = [item for item in items if _name(item.nodeid) in remaining]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._started = time.monotonic()
        self._write(event="started", check=_name(nodeid))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" or not report.passed:
            message = "" if call.excinfo is None else _message(report, call.excinfo.value)
            seconds = time.monotonic() - self._started
            check = _name(item.nodeid)
            wrong = getattr(call.excinfo.value, "model", "") if call.excinfo else ""
            if not wrong and message.startswith(_OF_NUMPY):
                wrong = "arrays"
            about = item.cls.under_test.about if isinstance(item, pytest.Function) and item.cls else {}
            self._write(
                event="ended",
                check=check,
                outcome=report.outcome,
                seconds=seconds,
                message=message,
                wrong=wrong,
                exceptions=class_names(call.excinfo.value) if call.excinfo else (),
                about=about,
            )
        return report


def _known_failures(items: list[pytest.Item]) -> dict[str, dict[str, str]]:
    """Those that the backend's table declares."""
    for item in items:
        if isinstance(item, pytest.Function) and item.cls is not None:
            try:
                with inherited_state.restored():  # this imports the plugin
                    table = faults.of(item.cls.under_test.backend)
                return {name: asdict(known) for name, known in table.checks.items()}
            except IsorunError:  # the checks meet the error and report it
                break
    return {}


def _name(nodeid: str) -> str:
    return nodeid.rpartition("::")[2]


def _capability(item: pytest.Item) -> str:
    assert isinstance(item, pytest.Function)
    callspec = getattr(item, "callspec", None)
    return capability_of(item.function, callspec.params if callspec else {})


def _message(report: pytest.TestReport, error: BaseException) -> str:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return reason.removeprefix("Skipped: ")
    text = str(error).strip()
    if isinstance(error, AssertionError | pytest.fail.Exception):
        text = text.partition("\nassert ")[0]  # pytest appends the expression, which the message explains
    else:
        text = f"{type(error).__name__}: {text}"
    lines = [line for line in text.splitlines() if line.strip()][:_MESSAGE_LINES]
    if not lines:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        lines = [f"{type(error).__name__} without a message, from {frame.filename}:{frame.lineno}"]
    return "\n".join([*lines, *_cause(error)])


def _cause(error: BaseException) -> list[str]:
    """The cause of a wrapped error, and the innermost call in the backend's own code, where its author has to look."""
    cause = error.__cause__
    if cause is None:
        return []
    if isinstance(cause, RemoteError):
        kind, text = cause.type, cause.traceback
    else:
        kind, text = type(cause).__name__, "".join(traceback.format_exception(cause))
    frames = _FRAME.findall(text.rpartition("Traceback (most")[2])
    outside = (f", from {file}:{line}" for file, line in frames if _OWN.isdisjoint(Path(file).resolve().parents))
    return [f"Cause: {kind}{next(outside, '')}"]
