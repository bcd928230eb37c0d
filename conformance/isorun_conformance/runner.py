"""Runs the suite in a child process.

A check that crashes or hangs its process has failed; the remaining checks run in a new process.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from isorun.errors import BackendUnavailable, IsorunError, did_you_mean
from isorun.system.subprocesses import Child, python_module
from isorun.types.faults import ENDINGS, KnownFailure
from isorun_conformance import recorder
from isorun_conformance.known_failures import Declared, of, parse
from isorun_conformance.result import CheckResult, Report, with_known_failures

SECONDS, BIG_SECONDS = 300.0, 1800.0
"""The time limit of a check, without and with the models that take minutes."""
CRASHES = 3
"""After so many crashes and hangs, the remaining checks are not run."""
_CRASH, _TIMEOUT = ENDINGS
_POLL = 0.1
_EXIT = "the exit of the process"
_EXPECTED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


def run(
    backend: str,
    *,
    environment: str | None = None,
    options: Mapping[str, Any] | None = None,
    big: bool = False,
    device: str | None = None,
    only: Sequence[str] = (),
    known_failures: Declared | None = None,
    seconds: float | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Report:
    """Run the suite on a backend.

    Args:
        backend, environment, options, big, device, known_failures: as for
            :class:`isorun_conformance.suite.Conformance`.
        only: the capabilities whose checks run; empty for all.
        seconds: the time limit of a check; ``None`` for :data:`SECONDS` or, with ``big``, :data:`BIG_SECONDS`.
        progress: called as each check starts, with its name, the number of checks that have ended, and of all.

    Raises:
        BackendUnavailable: the device is absent.
        IsorunError: there is no such capability or check, a known failure is invalid, or the suite itself does not
            run.
    """
    failures = parse(known_failures or {})
    report = Report(backend, environment, dict(options or {}), device)
    with tempfile.TemporaryDirectory(prefix="isorun-conformance-") as folder:
        events = f"{folder}/events"
        settings = recorder.Settings(backend, environment, report.options, big, list(only), [], events, device)
        run_ = _Run(settings, seconds or (BIG_SECONDS if big else SECONDS), progress, failures)
        run_.run()
    report.checks += with_known_failures(run_.results(), run_.known_failures, run_.known)
    report.about = run_.about
    return report


class _Run:
    """The processes that run the suite one after another, and the events that they write."""

    def __init__(
        self,
        settings: recorder.Settings,
        seconds: float,
        progress: Callable[[str, int, int], None],
        known_failures: Mapping[str, KnownFailure],
    ) -> None:
        self._settings = settings
        self._seconds = seconds
        self._progress = progress
        self._capabilities: dict[str, str] = {}  # of each check
        self._ended: dict[str, CheckResult] = {}
        self.known: list[str] = []  # all checks, selected or not
        self.known_failures = dict(known_failures)  # and those of the backend's table, once it is loaded
        self.about: dict[str, Any] = {}
        self._current = ""  # the check that runs; empty between checks
        self._since = 0.0

    def run(self) -> None:
        """Run until every check has ended, or the process has crashed or hung too often."""
        unexpected = 0
        while unexpected < CRASHES:
            how, log, ending = self._run_process()
            known = of(self._current, self.known_failures) if self._current else None
            unexpected += known is None or known.exception != ending
            if self._current:
                self._end(self._current, "failed", time.monotonic() - self._since, how, exceptions=(ending,))
            elif not self._capabilities or len(self._ended) < len(self._capabilities):
                raise IsorunError(f"The conformance suite stopped between checks: {how}\n{log}")
            elif how:
                self._capabilities[_EXIT] = "closing"
                self._end(_EXIT, "failed", 0.0, f"after the last check, {how}")
            if len(self._ended) == len(self._capabilities):
                return

    def results(self) -> list[CheckResult]:
        """The result of each check, in order."""
        reason = f"the process crashed or hung {CRASHES} times before"
        return [
            self._ended.get(name, CheckResult(name, capability, "not run", 0.0, reason))
            for name, capability in self._capabilities.items()
        ]

    def _run_process(self) -> tuple[str, str, str]:
        """Run the remaining checks. Returns how the process ended if that was not expected, the end of its log, and
        what that is in a declaration."""
        events = Path(self._settings.events)
        events.write_text("", encoding="utf-8")
        # No settings and plugins of pytest but these apply, whatever the user's folder and environment say.
        configuration = events.with_name("pytest.ini")
        configuration.write_text("[pytest]\n", encoding="utf-8")
        arguments = ("-c", str(configuration), "--rootdir", str(events.parent), "--import-mode=importlib")
        plugins = ("-p", "no:cacheprovider", "-p", recorder.__name__)
        command = python_module("pytest", *arguments, *plugins, str(Path(__file__).with_name("pytest_target.py")))
        variables = {
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
            "TMPDIR": str(events.parent),  # removed with it, also after a crash
            recorder.SETTINGS_VARIABLE: json.dumps({**asdict(self._settings), "done": list(self._ended)}),
        }
        self._current, self._since = "", time.monotonic()
        rest = ""
        with Child(command, env=variables) as child, events.open(encoding="utf-8") as reader:
            while True:
                exit_ = child.wait(_POLL)
                *lines, rest = (rest + reader.read()).split("\n")
                for line in lines:
                    self._handle(json.loads(line))
                if exit_ is not None:
                    return "" if exit_.code in _EXPECTED else f"its process {exit_.how}", exit_.log, _CRASH
                # Between checks, the process starts, imports modules or exits.
                limit = self._seconds if self._current else max(self._seconds, SECONDS)
                if time.monotonic() - self._since > limit:
                    return f"it did not finish within {limit:g} s", child.log(), _TIMEOUT

    def _handle(self, event: dict[str, Any]) -> None:
        self._since = time.monotonic()
        if event["event"] == "collected":
            self._capabilities, self.known = event["checks"], event["known"]
            self.known_failures = {**parse(event["known_failures"]), **self.known_failures}
        elif event["event"] == "unknown":
            hint = did_you_mean(event["capability"], event["known"])
            raise IsorunError(f"There is no capability {event['capability']!r}{hint}")
        elif event["event"] == "started":
            self._current = event["check"]
            self._progress(self._current, len(self._ended), len(self._capabilities))
        else:
            self.about = event["about"] or self.about
            result = {key: event[key] for key in ("outcome", "seconds", "message", "wrong", "exceptions")}
            self._end(event["check"], **result)
            device, raised = self._settings.device, event["exceptions"] if event["outcome"] == "failed" else ()
            if device is not None and "BackendUnavailable" in raised:
                why = event["message"].removeprefix("BackendUnavailable: ").rstrip(".")
                reason = f"the device {device!r} cannot be tested. {event['check']}: {why}"
                raise BackendUnavailable(self._settings.backend, reason, "Omit --device for the backend's first.")
            if self._settings.options and "InvalidOption" in raised:
                raise IsorunError(f"The options cannot be tested. {event['check']}: {event['message']}")

    def _end(
        self, check: str, outcome: str, seconds: float, message: str, wrong: str = "", exceptions: Sequence[str] = ()
    ) -> None:
        self._current = ""
        if check not in self._ended or self._ended[check].outcome != "failed":  # an error of the teardown says less
            capability = self._capabilities[check]
            self._ended[check] = CheckResult(check, capability, outcome, seconds, message, wrong, tuple(exceptions))
