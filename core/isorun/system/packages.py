"""Import packages and the distributions that installed them.

Reads the files of a distribution from its ``RECORD``, since ``importlib.metadata`` omits missing files from Python 3.12
on.
"""

from __future__ import annotations

import csv
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import Distribution, distribution, distributions, version
from pathlib import Path

from isorun.errors import IsorunError


def is_importable(package: str) -> bool:
    """Whether a package exists with its modules: a folder without any can be imported, but is empty."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is not None:
        return spec is not None
    # A namespace package, unless it was installed with an __init__.py, which is lost then.
    owners = map(distribution, package_owners(package))
    lost = any(path == f"{package}/__init__.py" for owner in owners for path, *_ in recorded(owner))
    return not lost and any(pkgutil.iter_modules(spec.submodule_search_locations))


def how_to_install(requirement: str) -> str:
    """The remedy for a missing package."""
    return f"Install it: pip install '{requirement}'"


def recorded(distribution: Distribution) -> Iterator[tuple[str, str, int | None]]:
    """The files of a distribution: path, ``sha256=...`` or nothing, and size in bytes if recorded."""
    for path, digest, size in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        yield path, digest, int(size) if size else None


def packages_distributions() -> Mapping[str, list[str]]:
    """The distributions of each import package. Reads the file lists of all distributions, which takes a tenth of a
    second, once for each state of the folders that packages are installed in."""
    return _packages_distributions(tuple(_installed()))


def _installed() -> Iterator[tuple[str, int]]:
    """The folders on the path, the records of distributions in them, and when each changed last."""
    for folder in sys.path:
        try:
            yield folder, Path(folder).stat().st_mtime_ns
            with os.scandir(folder or ".") as entries:
                records = [entry for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
            yield from ((record.path, record.stat().st_mtime_ns) for record in records)
        except OSError:
            continue  # an archive, or a folder that is not there


@lru_cache(maxsize=1)
def _packages_distributions(_installed: tuple[tuple[str, int], ...]) -> Mapping[str, list[str]]:
    owners_by_package: dict[str, set[str]] = {}
    for owner in distributions():
        if owner.read_text("METADATA") is None and owner.read_text("PKG-INFO") is None:
            continue  # damaged: it has no name
        named = (owner.read_text("top_level.txt") or "").split()
        for package in named or {_import_name(path) for path, *_ in recorded(owner)}:
            owners_by_package.setdefault(package, set()).update(owner.metadata.get_all("Name", []))
    return {package: sorted(owners) for package, owners in owners_by_package.items()}


def _import_name(path: str) -> str:
    """The module name of a recorded file, or its top-level folder."""
    top, _, below = path.partition("/")
    return top if below else (inspect.getmodulename(top) or top)


def package_owners(package: str) -> list[str]:
    """The distributions that provide an import package."""
    return packages_distributions().get(package, [])


def package_version(package: str) -> str | None:
    """The version of the distribution that provides an import package; ``None`` if there is none.

    All versions if several distributions overwrite one another: ``1.24.1 or 1.31.1``.
    """
    return " or ".join(dict.fromkeys(map(version, package_owners(package)))) or None


def require(what: str, *packages: str, extra: str = "graph") -> None:
    """Raise ``IsorunError`` if packages that an operation needs are not installed, with the command that installs
    them."""
    if missing := [package for package in packages if not is_importable(package)]:
        raise IsorunError(
            f"{what} requires {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed. "
            f"{how_to_install(f'isorun[{extra}]')}"
        )
