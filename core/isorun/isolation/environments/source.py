"""Links that make this process's isorun importable in an environment, without the packages that lie beside it.

A worker must run the same code as its session, also after isorun was upgraded, so isorun is not installed in
environments. Its site-packages folder cannot go on their path: it holds packages that they must not see. So there is a
folder of links to isorun's packages, with the distribution's metadata, where entry points are found.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path

from isorun.errors import IsorunError
from isorun.system.cache import sha256

NAME = "isorun"
GROUP = "isorun.backends"
_WHEEL = f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def requirements() -> list[str]:
    """The requirements of isorun without extras, as for pip."""
    return [requirement for requirement in _distribution().requires or [] if "extra ==" not in requirement]


def links(root: Path) -> Path:
    """The folder of links to this process's isorun, for ``PYTHONPATH``; created if it does not exist."""
    return root / ".source" / _create(root)


@cache
def _create(root: Path) -> str:
    packages, files = _packages(), _metadata()
    described = "\n".join([*(f"{name} {path}" for name, path in packages.items()), *files.values()])
    name = sha256(described.encode())[:16]
    folder = root / ".source" / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
        for package, path in packages.items():
            (part / package).symlink_to(path, target_is_directory=True)
        _write(part, files)
        try:
            part.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(part)
            if not folder.is_dir():
                raise
    return name


def register(site_packages: Path, root: Path) -> None:
    """Make isorun importable in an environment without ``PYTHONPATH``, and installed in the eyes of installers."""
    _write(site_packages, _metadata())
    information = site_packages / _information()
    (site_packages / f"{NAME}.pth").write_text(f"{links(root)}{os.linesep}", encoding="utf-8")
    (information / "INSTALLER").write_text(f"{NAME}\n", encoding="utf-8")
    (information / "WHEEL").write_text(_WHEEL, encoding="utf-8")  # uv rejects a distribution without one
    owned = [f"{NAME}.pth", *(f"{information.name}/{name}" for name in (*_metadata(), "INSTALLER", "WHEEL", "RECORD"))]
    (information / "RECORD").write_text("".join(f"{name},,\n" for name in owned), encoding="utf-8")


def _write(folder: Path, files: dict[str, str]) -> None:
    information = folder / _information()
    information.mkdir()
    for name, text in files.items():
        (information / name).write_text(text, encoding="utf-8")


def _information() -> str:
    return f"{NAME}-{_distribution().version}.dist-info"


def _packages() -> dict[str, Path]:
    """The packages of isorun and its backends, with the folder of each."""
    points = metadata.EntryPoints(_distribution().entry_points).select(group=GROUP)
    names = dict.fromkeys([NAME, *(point.module.partition(".")[0] for point in points)])
    folders = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise IsorunError(f"Cannot find isorun's package {name!r}. Reinstall isorun")
        folders[name] = Path(next(iter(spec.submodule_search_locations))).absolute()
    return folders


def _metadata() -> dict[str, str]:
    points = metadata.EntryPoints(_distribution().entry_points).select(group=GROUP)
    lines = [f"[{GROUP}]", *sorted(f"{point.name} = {point.value}" for point in points), ""]
    return {"METADATA": _distribution().read_text("METADATA") or "", "entry_points.txt": "\n".join(lines)}


@cache
def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(NAME)
    except metadata.PackageNotFoundError as error:
        raise IsorunError("isorun has no distribution metadata. Install it with pip, with -e for a checkout") from error
