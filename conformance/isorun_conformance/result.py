"""The result of a run of the suite: of each check and each capability, and the causes of what failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from isorun.types.faults import KnownFailure
from isorun_conformance import known_failures
from isorun_conformance.checks.base import UNDECIDED

_COMPUTES = "test_available_backend_computes"
"""The simplest check of outputs: if it finds wrong ones, they are the cause of all that are wrong."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        capability: what it proves.
        outcome: ``passed``, ``failed``, ``known failure``, ``skipped``, or ``not run`` if the process had crashed or
            hung too often.
        message: why it failed, was skipped or was not run; the declared reason of a known failure.
        wrong: the kind of model whose outputs were found wrong; empty if it failed for another reason.
        exceptions: the names of the classes of what it raised, the narrowest first; or ``crash`` or ``timeout``.
        known: the declaration of a known failure.
    """

    name: str
    capability: str
    outcome: str
    seconds: float = 0.0
    message: str = ""
    wrong: str = ""
    exceptions: tuple[str, ...] = ()
    known: KnownFailure | None = None


@dataclass(frozen=True)
class CapabilityResult:
    """The result of the checks of one capability.

    Attributes:
        status: ``failed`` if a check failed, else ``not run`` if one was not run, else ``known failure`` if one is,
            else ``skipped`` if one ran and could not tell, else ``proved`` if one passed, else ``skipped``.
        passed, failed, skipped, not_run, known: the number of checks.
        seconds: how long they took together.
        reasons: the distinct messages of the checks with the worst outcome.
    """

    name: str
    status: str
    passed: int
    failed: int
    skipped: int
    not_run: int
    known: int
    seconds: float
    reasons: tuple[str, ...]


@dataclass
class Report:
    """The result of a run of the suite."""

    backend: str
    environment: str | None
    options: Mapping[str, Any]
    device: str | None = None
    checks: list[CheckResult] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every check passed, was skipped or is a known failure, and at least one passed."""
        outcomes = {check.outcome for check in self.checks}
        return outcomes <= {"passed", "skipped", "known failure"} and "passed" in outcomes

    @property
    def causes(self) -> list[list[CheckResult]]:
        """The checks that failed, those of one cause together; the first of each is the simplest."""
        failed = [check for check in self.checks if check.outcome == "failed"]
        # Where the simplest model of a kind is wrong, all are.
        spoiled = {check.wrong for check in failed if check.wrong and check.name.startswith(_COMPUTES)}
        groups: dict[str, list[CheckResult]] = {}
        for check in failed:
            if not check.wrong:
                key = _key(check.message)
            elif spoiled:
                key = "wrong outputs"
            else:
                key = f"wrong outputs of {check.capability}"
            groups.setdefault(key, []).append(check)
        return list(groups.values())

    @property
    def capabilities(self) -> list[CapabilityResult]:
        """By capability, in the order of the checks."""
        grouped: dict[str, list[CheckResult]] = {}
        for check in self.checks:
            grouped.setdefault(check.capability, []).append(check)
        return [_capability(name, checks) for name, checks in grouped.items()]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        capabilities = [asdict(capability) for capability in self.capabilities]
        causes = [{"message": checks[0].message, "checks": [check.name for check in checks]} for checks in self.causes]
        return {**asdict(self), "passed": self.passed, "capabilities": capabilities, "causes": causes}


def with_known_failures(
    checks: Iterable[CheckResult], declared: Mapping[str, KnownFailure], names: Iterable[str]
) -> list[CheckResult]:
    """Checks with the failures among them that are declared.

    It is strict: a declared check that passes has failed, and so has one that raises another exception.

    Args:
        declared: by the name of a check, with its parameters or for any.
        names: of all checks.

    Raises:
        IsorunError: there is no check of a declared name.
    """
    known_failures.require_checks(declared, names)
    return [_compared(check, known_failures.of(check.name, declared)) for check in checks]


def _compared(check: CheckResult, known: KnownFailure | None) -> CheckResult:
    if known is None or check.outcome not in ("failed", "passed"):
        return check
    if check.outcome == "passed":
        message = f"it passed, but is declared as a known failure ({known.reason}). Remove the declaration"
        return replace(check, outcome="failed", message=message)
    if known.exception not in check.exceptions:
        raised = check.exceptions[0] if check.exceptions else "no exception"
        declaration = f"the known failure is declared with {known.exception} ({known.reason}), got {raised}"
        return replace(check, message=f"{check.message}\n{declaration}")
    return replace(check, outcome="known failure", message=f"{known.reason} ({known.kind})", known=known)


def _key(message: str) -> str:
    """What messages of one cause share: the place of the cause, or the first line without paths and numbers."""
    first = message.partition("\n")[0]
    if first.startswith("UnsupportedModel: "):  # one place refuses many operators
        return first
    cause = re.search(r"^Cause: .*from .*", message, re.MULTILINE)
    return cause.group() if cause else re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "#", re.sub(r"\S*/\S+", "", first))


def _capability(name: str, checks: list[CheckResult]) -> CapabilityResult:
    numbers = Counter(check.outcome for check in checks)
    worst = next(outcome for outcome in ("failed", "not run", "known failure", "skipped", "passed") if numbers[outcome])
    undecided = any(check.outcome == "skipped" and check.message.startswith(UNDECIDED) for check in checks)
    reasons = dict.fromkeys(check.message for check in checks if check.outcome == worst != "passed")
    return CapabilityResult(
        name,
        "proved" if worst in ("skipped", "passed") and numbers["passed"] and not undecided else worst,
        numbers["passed"],
        numbers["failed"],
        numbers["skipped"],
        numbers["not run"],
        numbers["known failure"],
        sum(check.seconds for check in checks),
        tuple(reasons),
    )
