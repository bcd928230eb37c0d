"""A child process of the doctor: ``python -m isorun.cli.doctor.child FILE TASK ...`` in the examined interpreter.

``names`` lists the backends, ``backend NAME`` examines one, ``packages NAME...`` import packages,
``operators NAME`` the known faults of its runtime. Each step is reported
before it begins, so that the step at which the process ended is known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import distribution
from typing import Any

from isorun.cli.doctor import operators, packages
from isorun.errors import BackendUnavailable
from isorun.plugin import registry
from isorun.plugin.backend import Backend
from isorun.system import subprocesses
from isorun.system.packages import is_importable
from isorun.system.telemetry import import_runtime
from isorun.types import Finding


def tell(**event: Any) -> None:
    """Report an event."""
    subprocesses.tell(sys.argv[1], **event)


def report(finding: Finding) -> None:
    """Report a finding."""
    tell(finding=asdict(finding))


def names() -> None:
    """List the installed backends; one that isorun refuses is a finding."""
    tell(subject="the list of backends", doing="reading entry points", command=packages.pip("check"))
    for entry in registry.entries():
        if not entry.refusal:
            tell(backend=entry.name)
            continue
        last = [namesake for namesake in registry.entries() if namesake.name == entry.name][-1]
        why = "isorun does not use it, since it cannot tell which is meant"
        command = packages.pip("uninstall", "-y", last.distribution)
        report(Finding(f"the backend {entry.name}", "error", entry.refusal, why, command))


def examine(name: str) -> None:
    """Examine a backend: its module, its package, and what it reports itself."""
    subject = f"the backend {name}"
    command = packages.repair(distribution(registry.entry(name).distribution))
    tell(subject=subject, doing="importing its module", command=command)
    try:
        backend = registry.get(name)
        package = backend.capabilities.package
        if package is not None:
            tell(package=package)
            if not is_importable(package) or not _imports(package):
                return
        tell(subject=subject, doing="listing its members", command=command)
        members = registry.members(name)
    except BackendUnavailable as error:
        why = f"{error.reason}. {error.remedy}"
        report(Finding(subject, "error", "it cannot be loaded", why, command))
        return
    for full_name in [name] if members is None else [f"{name}:{member}" for member in members]:
        tell(subject=f"the backend {full_name}", doing="diagnosing it", command=command)
        _diagnose(registry.get(full_name), command)


def examine_packages(*names: str) -> None:
    """Report packages with several owners or missing files."""
    for name in names:
        for finding in packages.findings(name):
            report(finding)


def _imports(package: str) -> bool:
    subject, command = f"the package {package}", packages.reinstall(package)
    tell(subject=subject, doing=f"importing {package}", command=command)
    try:
        import_runtime(package)
    except Exception as error:  # noqa: BLE001 - any error is the finding
        why = f"{type(error).__name__}: {error}"
        report(Finding(subject, "error", "it is installed but cannot be imported", why, command))
        return False
    return True


def _diagnose(backend: Backend, command: str) -> None:
    try:
        findings: Sequence[Any] = registry.ask(backend, "diagnose", list | tuple)
        told = [asdict(finding) for finding in findings]
    except (BackendUnavailable, TypeError) as error:
        why = (
            error.reason if isinstance(error, BackendUnavailable) else f"its diagnose() must return findings ({error})"
        )
        told = [asdict(Finding(f"the backend {backend.name}", "error", "it cannot be diagnosed", why, command))]
    for finding in told:
        tell(finding=finding)


def examine_operators(name: str) -> None:
    """Test the known faults of a backend's runtime."""
    subject, command = f"the backend {name}", packages.pip("install", "--upgrade", registry.entry(name).distribution)
    for finding in operators.findings(name, lambda step: tell(subject=subject, doing=step, command=command)):
        report(finding)


_TASKS: dict[str, Callable[..., None]] = {
    "names": names,
    "backend": examine,
    "packages": examine_packages,
    "operators": examine_operators,
}

if __name__ == "__main__":
    _TASKS[sys.argv[2]](*sys.argv[3:])
    tell(done=True)
