"""The result of a run of the suite: of each check, and of each capability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: the check's name, with its parameters.
        capability: what it proves.
        outcome: ``passed``, ``failed``, ``skipped``, or ``not run`` if the process had crashed or hung too often.
        seconds: how long it took.
        message: why it failed, was skipped or was not run.
    """

    name: str
    capability: str
    outcome: str
    seconds: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class CapabilityResult:
    """The result of the checks of one capability.

    Attributes:
        status: ``failed`` if a check failed, else ``not run`` if one was not run, else ``proved`` if one passed, else
            ``skipped``.
        passed, failed, skipped, not_run: the number of checks.
        seconds: how long they took together.
        reasons: the distinct messages of the checks with the worst outcome.
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
    """The result of a run of the suite."""

    backend: str
    environment: str | None
    options: Mapping[str, Any]
    checks: list[CheckResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether every check passed or was skipped, and at least one passed."""
        outcomes = {check.outcome for check in self.checks}
        return outcomes <= {"passed", "skipped"} and "passed" in outcomes

    @property
    def capabilities(self) -> list[CapabilityResult]:
        """By capability, in the order of the checks."""
        grouped: dict[str, list[CheckResult]] = {}
        for check in self.checks:
            grouped.setdefault(check.capability, []).append(check)
        return [_capability(name, checks) for name, checks in grouped.items()]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        capabilities = [asdict(each) for each in self.capabilities]
        return {**asdict(self), "passed": self.passed, "capabilities": capabilities}


def _capability(name: str, checks: list[CheckResult]) -> CapabilityResult:
    numbers = Counter(check.outcome for check in checks)
    worst = next(outcome for outcome in ("failed", "not run", "skipped", "passed") if numbers[outcome])
    reasons = dict.fromkeys(check.message for check in checks if check.outcome == worst != "passed")
    return CapabilityResult(
        name,
        "proved" if worst in ("skipped", "passed") and numbers["passed"] else worst,
        numbers["passed"],
        numbers["failed"],
        numbers["skipped"],
        numbers["not run"],
        sum(check.seconds for check in checks),
        tuple(reasons),
    )
