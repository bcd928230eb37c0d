"""Import packages, and the distributions that brought them.

What an installer brought is in a distribution's ``RECORD``, whatever became of it since. It is read here rather than
by ``importlib.metadata``, which leaves out what is gone from Python 3.12 on.
"""

from __future__ import annotations

import csv
import importlib.util
import inspect
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions, version


def is_importable(package: str) -> bool:
    """Whether an import package is there with its modules: a folder without them imports, and has nothing in it."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def how_to_install(requirement: str) -> str:
    """The remedy for a package that is not installed."""
    return f"Install it: pip install '{requirement}'"


def recorded(distribution: Distribution) -> Iterator[tuple[str, str, int | None]]:
    """What a distribution brought: paths, ``sha256=...`` or nothing, and bytes; nothing where it does not say."""
    for path, digest, size in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        yield path, digest, int(size) if size else None


def packages_distributions() -> dict[str, list[str]]:
    """Import packages, and the distributions that provide each. Reads every installed one's list of files: some ms."""
    found: dict[str, set[str]] = {}
    for each in distributions():
        if each.read_text("METADATA") is None and each.read_text("PKG-INFO") is None:
            continue  # damaged: it has no name
        named = (each.read_text("top_level.txt") or "").split()
        for package in named or {_import_name(path) for path, *_ in recorded(each)}:
            found.setdefault(package, set()).update(each.metadata.get_all("Name", []))
    return {package: sorted(owners) for package, owners in found.items()}


def _import_name(path: str) -> str:
    """What a recorded file is imported by, or the folder that it is in."""
    top, _, below = path.partition("/")
    return top if below else (inspect.getmodulename(top) or top)


def package_owners(package: str) -> list[str]:
    """The distributions that provide an import package."""
    return packages_distributions().get(package, [])


def package_version(package: str) -> str | None:
    """The version of the distribution that provides an import package; ``None`` where none says so.

    Of several distributions that overwrite one another, which is there is not known: ``1.24.1 or 1.31.1``.
    """
    return " or ".join(dict.fromkeys(map(version, package_owners(package)))) or None
