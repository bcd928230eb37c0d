"""Import packages of runtimes: whose they are, whether they are whole, and how they are installed anew.

Two distributions that both list ``onnxruntime/__init__.py`` overwrite one another, and uninstalling one takes the
other's files with it.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
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
    """A line of a ``RECORD``: where the file is due, ``sha256=...`` or nothing, and its bytes."""

    place: Path
    digest: str
    size: int | None


def findings(package: str) -> Iterator[Finding]:
    """What is wrong with an import package, by the distributions that own it."""
    owners = [distribution(name) for name in package_owners(package)]
    brought = {each.name: _files(each, package) for each in owners}
    contested = [one for one in owners if any(brought[one.name].keys() & brought[o.name] for o in owners if o != one)]
    if contested:
        yield _contested(package, contested, brought)
    for each in owners:
        if each not in contested and (broken := _broken(package, each, brought[each.name])):
            yield broken


def reinstall(package: str) -> str:
    """The command that installs what brings an import package anew; as it is, where nothing brings it."""
    owners = [distribution(name) for name in package_owners(package)]
    return pip("install", "--force-reinstall", "--no-deps", *(map(requirement, owners) if owners else [package]))


def requirement(each: Distribution) -> str:
    """What is given to pip to install the same again."""
    source = json.loads(each.read_text("direct_url.json") or "{}")
    if not source:
        return f"{each.name}=={each.version}"
    url = str(source["url"])
    editable = source.get("dir_info", {}).get("editable", False)
    return f"--editable={url.removeprefix('file://')}" if editable else f"{each.name} @ {url}"


def _contested(package: str, owners: Sequence[Distribution], brought: dict[str, dict[str, _File]]) -> Finding:
    """Several distributions with the same files: the active one is the one whose files lie there."""
    names = [each.name for each in owners]
    differing = _differing([brought[name] for name in names])
    there = {name: sum(_lies_there(brought[name][path]) for path in differing) for name in names}
    counts = ", ".join(f"{there[each.name]} are those of {each.name} {each.version}" for each in owners)
    active = max(owners, key=lambda each: there[each.name])
    known = f"{active.name} {active.version} is active"
    state = known if there[active.name] else "which is active cannot be told from their files"
    whole = there[active.name] == len(differing)
    return Finding(
        f"the package {package}",
        "error",
        f"{' and '.join(names)} both own it, and {state}",
        f"they overwrite one another's files ({len(differing)} differ: {counts}); "
        + ("" if whole else "none of them is whole; ")
        + "uninstalling one breaks the other. Keep one here, and give the other an environment of its own: "
        "isorun env create NAME --install ...",
        f"{pip('uninstall', '-y', *names)} && {pip('install', requirement(active))}",
    )


def _broken(package: str, owner: Distribution, brought: dict[str, _File]) -> Finding | None:
    """Files that are gone or cut short, or a package without any module."""
    wrong = sorted(path for path, file in brought.items() if not _is_there(file))
    hollow = not is_importable(package)
    if not wrong and not hollow:
        return None
    what = "it is hollow: there is no module in it" if hollow else f"{len(wrong)} of its {len(brought)} files are gone"
    example = f" ({wrong[0]}{', ...' if len(wrong) > 1 else ''})" if wrong else ""
    return Finding(
        f"the package {package}",
        "error",
        f"{what}{'' if hollow else ' or of another size'}{example}",
        f"{owner.name} {owner.version} is installed by its metadata; what shared its files may have been uninstalled. "
        "pip takes it for whole",
        pip("install", "--force-reinstall", "--no-deps", requirement(owner)),
    )


def _files(owner: Distribution, package: str) -> dict[str, _File]:
    """What a distribution brought of a package, without what Python compiles."""
    found = {}
    for path, digest, size in recorded(owner):
        parts = PurePosixPath(path).parts
        if (parts[0] == package or PurePosixPath(path).stem == package) and "__pycache__" not in parts:
            found[path] = _File(Path(str(owner.locate_file(path))), digest, size)
    return found


def _differing(brought: Sequence[dict[str, _File]]) -> list[str]:
    """The files that they have in common, and that are not the same in all of them."""
    common = set.intersection(*map(set, brought))
    return sorted(path for path in common if len({each[path].digest for each in brought}) > 1)


def _is_there(file: _File) -> bool:
    return file.place.is_file() and (file.size is None or file.place.stat().st_size == file.size)


def _lies_there(file: _File) -> bool:
    """Whether a file is the one that its distribution brought, to the byte."""
    algorithm, _, expected = file.digest.partition("=")
    if not _is_there(file) or not expected:
        return False
    with file.place.open("rb") as content:
        digest = hashlib.file_digest(content, algorithm).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == expected


def pip(verb: str, *arguments: str) -> str:
    """A command for the installer that serves this interpreter."""
    quoted = [shlex.quote(each) for each in arguments]
    here = Path(sys.executable).parent
    on_path = shutil.which("pip")
    if importlib.util.find_spec("pip") is None:  # uv makes environments without it, and asks nothing
        uv = [each for each in quoted if each not in ("-y", "--force-reinstall")]
        again = ["--reinstall"] if "--force-reinstall" in quoted else []
        return " ".join(["uv", "pip", verb, "--python", shlex.quote(sys.executable), *again, *uv])
    pip = "pip" if on_path and Path(on_path).parent == here else f"{shlex.quote(sys.executable)} -m pip"
    return " ".join([pip, verb, *quoted])
