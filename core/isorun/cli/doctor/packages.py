"""Import packages of runtimes: their owners, missing files, and the commands that reinstall them.

Two distributions that both list ``onnxruntime/__init__.py`` overwrite one another, and uninstalling one removes files
of the other.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

from isorun.system.packages import is_importable, package_owners, recorded
from isorun.types import Finding


@dataclass(frozen=True, slots=True)
class _File:
    """A line of a ``RECORD``: the path of a file, ``sha256=...`` or nothing, and its size in bytes."""

    path: Path
    digest: str
    size: int | None


def findings(package: str) -> Iterator[Finding]:
    """The problems of an import package."""
    owners = [distribution(name) for name in package_owners(package)]
    files = {owner.name: _files(owner, package) for owner in owners}
    contested = [
        owner
        for owner in owners
        if any(files[owner.name].keys() & files[rival.name] for rival in owners if rival != owner)
    ]
    if contested:
        yield _contested(package, contested, files)
    for owner in owners:
        if owner not in contested and (broken := _broken(package, owner, files[owner.name])):
            yield broken


def reinstall(package: str) -> str:
    """The command that reinstalls the distributions of an import package; the package itself if it has none.

    With their dependencies, unless files are missing: otherwise the same files would fail again.
    """
    owners = [distribution(name) for name in package_owners(package)]
    options = ["--no-deps"] if any(_lacks_files(owner) for owner in owners) else []
    return pip("install", "--force-reinstall", *options, *(map(requirement, owners) if owners else [package]))


def repair(owner: Distribution) -> str:
    """The command after which a distribution's plugin has no problem: a reinstallation if that helps, else its removal.

    A reinstallation helps if its files or its dependencies are missing, and with isorun itself.
    """
    if owner.name == "isorun" or _lacks_files(owner) or _lacks_dependencies(owner):
        return pip("install", "--force-reinstall", requirement(owner))
    return f"{pip('uninstall', '-y', owner.name)}   # or install another version of it, or of isorun"


def _lacks_files(owner: Distribution) -> bool:
    listed = (_File(Path(str(owner.locate_file(path))), digest, size) for path, digest, size in recorded(owner))
    return any(not _exists(file) for file in listed if file.path.suffix != ".pyc")


def _lacks_dependencies(owner: Distribution) -> bool:
    """Whether a distribution that it always requires is not installed."""
    names = [re.match(r"[\w.-]+", dependency) for dependency in owner.requires or () if ";" not in dependency]
    return any(name is not None and not list(Distribution.discover(name=name[0])) for name in names)


def requirement(owner: Distribution) -> str:
    """The requirement that installs the same distribution again."""
    source = json.loads(owner.read_text("direct_url.json") or "{}")
    if not source:
        return f"{owner.name}=={owner.version}"
    url = str(source["url"])
    editable = source.get("dir_info", {}).get("editable", False)
    return f"--editable={url.removeprefix('file://')}" if editable else f"{owner.name} @ {url}"


def _contested(package: str, owners: Sequence[Distribution], files: dict[str, dict[str, _File]]) -> Finding:
    """The finding about distributions that overwrite one another; the active one is the one whose files exist."""
    names = [owner.name for owner in owners]
    differing = _differing([files[name] for name in names])
    intact = {name: sum(_is_intact(files[name][path]) for path in differing) for name in names}
    counts = ", ".join(f"{intact[owner.name]} from {owner.name} {owner.version}" for owner in owners)
    active = max(owners, key=lambda owner: intact[owner.name])
    state = f"{active.name} {active.version} is active"
    if not intact[active.name]:
        state = "neither is intact"
    partial = "" if intact[active.name] == len(differing) else "none of them is complete; "
    return Finding(
        f"the package {package}",
        "error",
        f"{' and '.join(names)} both own it, and {state}",
        f"they overwrite one another's files ({len(differing)} differ: {counts}); {partial}uninstalling one breaks the "
        "other. Keep one, and install the other in an environment: isorun env create NAME --install ...",
        f"{pip('uninstall', '-y', *names)} && {pip('install', requirement(active))}",
    )


def _broken(package: str, owner: Distribution, files: dict[str, _File]) -> Finding | None:
    """The finding about missing or truncated files, or a package without modules."""
    wrong = sorted(path for path, file in files.items() if not _exists(file))
    hollow = not is_importable(package)
    if not wrong and not hollow:
        return None
    missing = f"{len(wrong)} of its {len(files)} files are missing or have the wrong size"
    what = "its folder has no modules" if hollow else missing
    example = f" ({wrong[0]}{', ...' if len(wrong) > 1 else ''})" if wrong else ""
    return Finding(
        f"the package {package}",
        "error",
        f"{what}{example}",
        f"pip regards {owner.name} {owner.version} as installed, since it has metadata. Perhaps another distribution "
        "with the same files was uninstalled",
        pip("install", "--force-reinstall", "--no-deps", requirement(owner)),
    )


def _files(owner: Distribution, package: str) -> dict[str, _File]:
    """The files of a package that a distribution installed, without byte code."""
    files = {}
    for path, digest, size in recorded(owner):
        parts = PurePosixPath(path).parts
        if (parts[0] == package or PurePosixPath(path).stem == package) and "__pycache__" not in parts:
            files[path] = _File(Path(str(owner.locate_file(path))), digest, size)
    return files


def _differing(files: Sequence[dict[str, _File]]) -> list[str]:
    """The files that all of them have, with different contents."""
    common = set.intersection(*map(set, files))
    return sorted(path for path in common if len({listing[path].digest for listing in files}) > 1)


def _exists(file: _File) -> bool:
    return file.path.is_file() and (file.size is None or file.path.stat().st_size == file.size)


def _is_intact(file: _File) -> bool:
    """Whether a file has the content that its distribution recorded."""
    algorithm, _, expected = file.digest.partition("=")
    if not _exists(file) or not expected:
        return False
    with file.path.open("rb") as content:
        digest = hashlib.file_digest(content, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == expected


def pip(verb: str, *arguments: str) -> str:
    """A command of the installer for this interpreter."""
    quoted = [shlex.quote(argument) for argument in arguments]
    folder = Path(sys.executable).parent
    on_path = shutil.which("pip")
    if importlib.util.find_spec("pip") is None:  # uv creates environments without pip, and never asks
        uv = [argument for argument in quoted if argument not in ("-y", "--force-reinstall")]
        again = ["--reinstall"] if "--force-reinstall" in quoted else []
        return " ".join(["uv", "pip", verb, "--python", shlex.quote(sys.executable), *again, *uv])
    pip = "pip" if on_path and Path(on_path).parent == folder else f"{shlex.quote(sys.executable)} -m pip"
    return " ".join([pip, verb, *quoted])
