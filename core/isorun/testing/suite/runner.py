"""Runs the suite in a process of its own, and says which capabilities were proved.

A check that ends the process, or does not end itself, has failed; the suite goes on behind it in a new process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from isorun.errors import IsorunError, did_you_mean
from isorun.system.log_tail import end_of_file

SECONDS, BIG_SECONDS = 300.0, 1800.0
"""How long a check may take, without and with the models that take minutes."""
CRASHES = 3
"""After so many ends of the process the rest of the checks would show the same again."""
_POLL = 0.1
_AFTERWARDS = "the end of the process"
_EXPECTED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


@dataclass(frozen=True)
class Check:
    """What became of one check.

    Attributes:
        name: the check's, with its parameters.
        capability: what it proves.
        outcome: ``passed``, ``failed``, ``skipped`` or, where the process had ended too often, ``not run``.
        seconds: how long it took.
        message: why it failed, was skipped or was not run.
    """

    name: str
    capability: str
    outcome: str
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class Capability:
    """What became of the checks of one capability.

    Attributes:
        status: ``failed`` where a check failed, else ``not run`` where one was not, else ``proved`` where one passed,
            else ``skipped``.
        passed, failed, skipped, not_run: numbers of checks.
        seconds: what they took together.
        reasons: why checks failed, were not run or were skipped: of the worst of these, and each once.
    """

    name: str
    status: str
    passed: int
    failed: int
    skipped: int
    not_run: int
    seconds: float
    reasons: tuple[str, ...]


@dataclass
class Report:
    """What became of a run of the suite."""

    backend: str
    environment: str | None
    options: Mapping[str, Any]
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every check passed or was skipped, and at least one passed."""
        outcomes = {check.outcome for check in self.checks}
        return outcomes <= {"passed", "skipped"} and "passed" in outcomes

    @property
    def capabilities(self) -> list[Capability]:
        """By capability, in the order of the checks."""
        grouped: dict[str, list[Check]] = {}
        for check in self.checks:
            grouped.setdefault(check.capability, []).append(check)
        return [_capability(name, checks) for name, checks in grouped.items()]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "backend": self.backend,
            "environment": self.environment,
            "options": dict(self.options),
            "passed": self.passed,
            "capabilities": [asdict(each) for each in self.capabilities],
            "checks": [asdict(each) for each in self.checks],
        }


def _capability(name: str, checks: list[Check]) -> Capability:
    numbers = Counter(check.outcome for check in checks)
    worst = next(outcome for outcome in ("failed", "not run", "skipped", "passed") if numbers[outcome])
    reasons = dict.fromkeys(check.message for check in checks if check.outcome == worst != "passed")
    return Capability(
        name,
        "proved" if worst in ("skipped", "passed") and numbers["passed"] else worst,
        numbers["passed"],
        numbers["failed"],
        numbers["skipped"],
        numbers["not run"],
        sum(check.seconds for check in checks),
        tuple(reasons),
    )


def run(
    backend: str,
    *,
    environment: str | None = None,
    options: Mapping[str, Any] | None = None,
    big: bool = False,
    only: Sequence[str] = (),
    seconds: float | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Report:
    """Run the suite on a backend.

    Args:
        backend: its name.
        environment: the isolated environment that it runs in; ``None`` for where the suite runs.
        options: for ``Session(options=...)``, in every check.
        big: whether to run bert-3l to bert-base too.
        only: the capabilities whose checks are wanted; none for all.
        seconds: how long a check may take; ``None`` for :data:`SECONDS` or, with ``big``, :data:`BIG_SECONDS`.
        progress: told of each check that begins, how many have ended, and of how many.

    Raises:
        IsorunError: there is no such capability, or the suite itself does not run.
    """
    report = Report(backend, environment, dict(options or {}))
    settings: dict[str, Any] = {"backend": backend, "environment": environment, "options": report.options}
    settings |= {"big": big, "only": list(only)}
    with tempfile.TemporaryDirectory(prefix="isorun-conformance-") as folder:
        following = _Following(Path(folder), settings, seconds or (BIG_SECONDS if big else SECONDS), progress)
        try:
            following.run()
        finally:
            following.stop()
    report.checks += following.checks()
    return report


class _Following:
    """The processes that run the suite one after another, and the events that they write."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], seconds: float, progress: Callable[[str, int, int], None]
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._seconds = seconds
        self._progress = progress
        self._collected: dict[str, str] = {}
        self._ended: dict[str, Check] = {}
        self._current = ""  # the check that runs; empty between checks
        self._since = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Run until every check has ended, or the process has too often."""
        for number in range(CRASHES):
            events, log = self._folder / f"events-{number}", self._folder / f"log-{number}"
            events.touch()
            how = self._run_process(events, log)
            if self._current:
                self._end(self._current, "failed", time.monotonic() - self._since, how)
            elif not self._collected or len(self._ended) < len(self._collected):
                raise IsorunError(f"The conformance suite broke off between checks: {how}\n{end_of_file(log)}")
            elif how:
                self._collected[_AFTERWARDS] = "closing"
                self._end(_AFTERWARDS, "failed", 0.0, f"after the last check, {how}")
            if len(self._ended) == len(self._collected):
                return

    def checks(self) -> list[Check]:
        """What became of each check, in their order."""
        left = f"the process ended or hung {CRASHES} times before"
        return [self._ended.get(name, Check(name, of, "not run", 0.0, left)) for name, of in self._collected.items()]

    def stop(self) -> None:
        """End the process, and whatever it started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _run_process(self, events: Path, log: Path) -> str:
        """Run the checks that are left; how the process ended, where that was no end to be expected."""
        settings = {**self._settings, "done": list(self._ended)}
        # -P: as the command line, which looks for no module in the folder that it is called in.
        command = [sys.executable, "-P", "-m", "isorun.testing.suite.child", str(events), json.dumps(settings)]
        # Plugins of pytest that happen to be installed are not meant, as its settings are not.
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        self._current, self._since = "", time.monotonic()
        with log.open("wb") as output, events.open() as told:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
            rest = ""
            while True:
                code = self._process.poll()
                *lines, rest = (rest + told.read()).split("\n")
                for line in lines:
                    self._take(json.loads(line))
                if code is not None:
                    return "" if code in _EXPECTED else f"its process ended with {_how(code)}"
                # Outside of a check, modules are imported and the process begins or ends.
                allowed = self._seconds if self._current else max(self._seconds, SECONDS)
                if time.monotonic() - self._since > allowed:
                    self.stop()
                    return f"it did not end within {allowed:.0f} s"
                time.sleep(_POLL)

    def _take(self, event: dict[str, Any]) -> None:
        self._since = time.monotonic()
        if event["event"] == "collected":
            self._collected = event["checks"]
        elif event["event"] == "unknown":
            hint = did_you_mean(event["capability"], event["known"])
            raise IsorunError(f"There is no capability {event['capability']!r}{hint}")
        elif event["event"] == "started":
            self._current = event["check"]
            self._progress(self._current, len(self._ended), len(self._collected))
        else:
            self._end(event["check"], event["outcome"], event["seconds"], event["message"])

    def _end(self, check: str, outcome: str, seconds: float, message: str) -> None:
        self._current = ""
        if check not in self._ended or self._ended[check].outcome != "failed":  # what follows a failure says less
            self._ended[check] = Check(check, self._collected[check], outcome, seconds, message)


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
