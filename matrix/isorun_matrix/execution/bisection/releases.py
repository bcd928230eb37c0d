"""The releases of a package that the package index has."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from packaging.version import Version

from isorun.errors import IsorunError, SpecError
from isorun.system.subprocesses import guarded, run

_LISTED = re.compile(r"^Available versions: (.+)$", re.MULTILINE)


def between(package: str, good: str, bad: str) -> list[str]:
    """The releases from ``good`` to ``bad``, the oldest first.

    Args:
        package: the name of a distribution.
        good: a release, or the start of its version: ``1.24`` is the oldest 1.24 release.
        bad: the same; ``1.31`` is the newest 1.31 release.

    Raises:
        SpecError: there is no such release, or ``good`` is not older than ``bad``.
        IsorunError: pip cannot list the releases.
    """
    releases = available(package)
    first, last = _matching(package, good, releases)[0], _matching(package, bad, releases)[-1]
    if releases.index(first) >= releases.index(last):
        raise SpecError(f"--good must be older than --bad, got {first} and {last}")
    return releases[releases.index(first) : releases.index(last) + 1]


def available(package: str) -> list[str]:
    """The releases of a package for this Python and system, without pre-releases, the oldest first. Raises
    ``IsorunError`` if pip is not installed or cannot find the package."""
    listing = run(
        guarded([sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", package]),
        capture_output=True,
    )
    match = _LISTED.search(listing.output)
    if not listing.ok or match is None:
        why = "Install pip (`python -m ensurepip`)" if "No module named pip" in listing.log else listing.last_line
        raise IsorunError(f"pip cannot list the releases of {package}. {why}")
    return sorted(match[1].split(", "), key=Version)


def _matching(package: str, wanted: str, releases: Sequence[str]) -> list[str]:
    matching = [release for release in releases if release == wanted or release.startswith(f"{wanted}.")]
    if not matching:
        known = ", ".join(releases[-12:])
        raise SpecError(f"The package index has no release {wanted!r} of {package} for this Python. It has {known}")
    return matching
