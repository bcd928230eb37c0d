"""A process of the doctor's: ``python -m isorun.doctor.child WHAT ...`` in the interpreter that is looked at.

``names`` says which backends there are, ``backend NAME`` looks at one, ``packages NAME...`` at import packages. Each
writes lines of JSON as it goes, so that where the process ends early, what it was about is known.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata

from isorun.doctor import packages
from isorun.doctor.lines import tell
from isorun.errors import BackendUnavailable
from isorun.plugin import registry
from isorun.plugin.backend import Backend
from isorun.system.packages import is_importable
from isorun.types import Finding


def names() -> None:
    """The backends that are installed; a name that two classes have is a finding."""
    tell(subject="the list of backends", doing="reading entry points", command=packages.pip("check"))
    for name, value in registry.entry_points().items():
        if isinstance(value, str):
            tell(backend=name)
        else:
            tell(
                finding=asdict(
                    Finding(
                        f"the backend {name}",
                        "error",
                        f"{len(value)} distributions register a backend of that name: {' and '.join(value)}",
                        "none of them is used, since which was meant cannot be told",
                        packages.pip("uninstall", "-y", value[-1].partition(" ")[0]),
                    )
                )
            )


def look_at(name: str) -> None:
    """A backend: its module, its package, and what it knows itself."""
    subject = f"the backend {name}"
    owner = next(point.dist for point in metadata.entry_points(group=registry.GROUP, name=name))
    again = packages.pip("install", "--force-reinstall", packages.requirement(owner)) if owner else ""
    tell(subject=subject, doing="importing its module", command=again)
    try:
        backend = registry.get(name)
    except BackendUnavailable as error:
        tell(finding=asdict(Finding(subject, "error", "it does not load", error.reason, again)))
        return
    package = backend.capabilities.package
    if package is not None:
        tell(package=package)
        if not is_importable(package) or not _imports(package):
            return
    tell(subject=subject, doing="asking for its members", command=again)
    for each in [name] if backend.members() is None else [f"{name}:{member}" for member in backend.members() or ()]:
        tell(subject=f"the backend {each}", doing="looking at it", command=again)
        _diagnose(registry.get(each), again)


def look_at_packages(*names: str) -> None:
    """Whose they are, and whether they are whole."""
    for name in names:
        for finding in packages.findings(name):
            tell(finding=asdict(finding))


def _imports(package: str) -> bool:
    subject, again = f"the package {package}", packages.reinstall(package)
    tell(subject=subject, doing=f"importing {package}", command=again)
    try:
        importlib.import_module(package)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        why = f"{type(error).__name__}: {error}"
        tell(finding=asdict(Finding(subject, "error", "it is installed and does not import", why, again)))
        return False
    return True


def _diagnose(backend: Backend, again: str) -> None:
    try:
        found = backend.diagnose()
    except Exception as error:  # noqa: BLE001 - a plugin's own mistake is a finding, not the end
        why = f"its diagnose() raises {type(error).__name__}: {error}"
        found = [Finding(f"the backend {backend.name}", "error", "it cannot be looked at", why, again)]
    for each in found:
        tell(finding=asdict(each))


_TASKS: dict[str, Callable[..., None]] = {"names": names, "backend": look_at, "packages": look_at_packages}

if __name__ == "__main__":
    _TASKS[sys.argv[1]](*sys.argv[2:])
    tell(done=True)
