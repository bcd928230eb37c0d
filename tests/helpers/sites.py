"""Folders of packages as an installer leaves them: files, and a distribution's metadata with a RECORD of them."""

import base64
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from isorun.cli.doctor import installation


def examine_only(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Have the doctor examine these backends alone: each of them takes a process, which imports a runtime."""
    values = installation._values

    def chosen(events: list[dict[str, Any]], key: str) -> list[Any]:
        return [value for value in values(events, key) if key != "backend" or value in names]

    patch.setattr(installation, "_values", chosen)


def install(
    site: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes | str],
    backends: Mapping[str, str] | None = None,
    group: str = "isorun.backends",
    requires: Sequence[str] = (),
) -> None:
    """Put files there, over those that are there, as pip does with a wheel.

    Args:
        backends: entry points of the group.
        requires: the requirements of the distribution.
    """
    lines = []
    for path, content in files.items():
        raw = content.encode() if isinstance(content, str) else content
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(raw)
        digest = base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(raw)}")
    information = _information(site, name, version)
    information.mkdir(parents=True)
    required = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}")
    lines += [f"{information.name}/{name},," for name in ("METADATA", "RECORD", "entry_points.txt")]
    (information / "RECORD").write_text("\n".join([*lines, ""]))
    points = [f"{key} = {value}" for key, value in (backends or {}).items()]
    (information / "entry_points.txt").write_text("\n".join([f"[{group}]", *points, ""]))


def uninstall(site: Path, name: str, version: str) -> None:
    """Remove what its RECORD lists, whosever it is by now, as pip does."""
    information = _information(site, name, version)
    for line in (information / "RECORD").read_text(encoding="utf-8").splitlines():
        (site / line.partition(",")[0]).unlink(missing_ok=True)
    shutil.rmtree(information)


def _information(site: Path, name: str, version: str) -> Path:
    return site / f"{name.replace('-', '_')}-{version}.dist-info"
