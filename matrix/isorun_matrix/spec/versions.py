"""Versions of runtimes that isorun's backends need: what ``pip install isorun[...]`` requires."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import requires

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version


def too_old(packages: Mapping[str, str]) -> list[str]:
    """The packages of an environment, by distribution, whose versions isorun does not support, with the supported
    ones."""
    needed = dict(_needed())
    problems = []
    for name, version in packages.items():
        supported = needed.get(canonicalize_name(name))
        try:
            if supported is None or supported.contains(Version(version), prereleases=True):
                continue
        except InvalidVersion:  # such as a build of one's own
            continue
        problems.append(f"{name} {version} is not supported (required: {name}{supported})")
    return problems


def excluded(requirement: str) -> str | None:
    """Why a requirement, as for pip, asks for a version that isorun does not support; ``None`` if it may not."""
    try:
        wanted = Requirement(requirement)
    except InvalidRequirement:  # a path or a URL
        return None
    pins = {pin.version for pin in wanted.specifier if pin.operator in ("==", "===") and "*" not in pin.version}
    return next(iter(too_old({wanted.name: pins.pop()})), None) if pins else None


def _needed() -> Iterator[tuple[str, SpecifierSet]]:
    for text in requires("isorun") or ():
        requirement = Requirement(text)
        if requirement.specifier:
            yield canonicalize_name(requirement.name), requirement.specifier
