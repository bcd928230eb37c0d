"""Virtual environments for backends that conflict with each other.

``onnxruntime``, ``onnxruntime-gpu`` and ``onnxruntime-openvino`` overwrite one another's files; DeepSparse requires an
old Python. Each can have a separate environment, in which ``Session(..., environment=NAME)`` runs it. ::

    environments.create("ovn", python="3.11", install=["onnxruntime-openvino==1.24.1"])

An environment is a folder under :func:`root`, created with uv if it is installed, otherwise with venv and pip. Its
record, ``environment.json``, has the suffix ``.partial`` until the environment is complete. isorun deletes or replaces
a folder only if it holds one of the two, and never follows a symbolic link. isorun is not installed there but imported
from its present location (:mod:`isorun.isolation.environments.source`).
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from isorun.errors import EnvironmentBroken, EnvironmentNotFound, IsorunError
from isorun.isolation.environments import install as installing
from isorun.isolation.environments import interpreters, source
from isorun.system.cache import ENVIRONMENT_VARIABLE as CACHE_VARIABLE
from isorun.system.cache import expanded, write_atomically

FOLDER_VARIABLE = "ISORUN_ENVIRONMENTS_DIR"
_RECORD = "environment.json"
_PARTIAL = f"{_RECORD}.partial"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# These make an interpreter look for packages outside its environment.
_UNSET = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONSAFEPATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Environment:
    """An existing environment.

    Attributes:
        name: its name.
        folder: its folder.
        version: the version of its Python, such as ``3.11.7``.
        install: the requirements it was created with, as for pip; paths are absolute.
    """

    name: str
    folder: Path
    version: str
    install: tuple[str, ...]

    @property
    def python(self) -> Path:
        """The path of its interpreter."""
        return self.folder / "bin" / "python"

    def check(self) -> None:
        """Reject an environment whose base interpreter was removed or moved.

        Raises:
            EnvironmentBroken: with the commands that create it again.
        """
        if missing := self.missing():
            raise EnvironmentBroken(
                f"The interpreter of the environment {self.name!r} is missing: {missing}. {self.remedy()}"
            )

    def missing(self) -> Path | None:
        """The path of the interpreter if it is missing; ``None`` if it exists."""
        if os.access(self.python, os.X_OK):
            return None
        return self.python.resolve() if self.python.is_symlink() else self.python

    def require(self, python: str | None, install: Sequence[str]) -> None:
        """Reject it unless it was created with this Python and these requirements.

        Args:
            python: as for :func:`create`; ``None`` for any.
            install: from :func:`requirement`, in any order.

        Raises:
            IsorunError: it was created with others; with the command that removes it.
        """
        if set(self.install) == set(install) and (python is None or interpreters.matches(python, self.version)):
            return
        requested = f"{f'Python {python}' if python else 'any Python'} and {_listed(install)}"
        raise IsorunError(
            f"The environment {self.name!r} exists with Python {self.version} and {_listed(self.install)}, but "
            f"{requested} was requested. Choose another name, or remove it first: isorun env remove {self.name}"
        )

    def remedy(self, *more: str) -> str:
        """The sentence that says how to create it again, with more requirements if given."""
        return f"Create it again: {self.commands(*more)}"

    def commands(self, *more: str) -> str:
        """The commands that create it again, with more requirements if given."""
        options = [f"--python {'.'.join(self.version.split('.')[:2])}"]
        options += [f"--install {shlex.quote(each)}" for each in (*self.install, *more)]
        return f"isorun env remove {self.name} && isorun env create {self.name} {' '.join(options)}"

    def packages(self) -> dict[str, str]:
        """The versions of the installed distributions by name, without isorun."""
        from importlib.metadata import distributions

        found = distributions(path=[str(installing.site_packages(self.folder))])
        versions = {each.name: each.version for each in found if each.name != source.NAME}
        return dict(sorted(versions.items(), key=lambda item: item[0].lower()))

    def size(self) -> int:
        """The total size of its files in bytes. With uv it may take less disk space: environments share files."""
        files = (Path(folder) / name for folder, _, names in os.walk(self.folder) for name in names)
        return sum(file.lstat().st_size for file in files)

    def variables(self, cache_dir: str | os.PathLike[str] | None = None, links: Path | None = None) -> dict[str, str]:
        """The environment variables of a process that runs there and imports this process's isorun.

        Args:
            cache_dir: the cache folder it uses; ``None`` for that of this process.
            links: the folder for the links to isorun; ``None`` for the folder of all environments.
        """
        variables = {name: value for name, value in os.environ.items() if name not in _UNSET}
        if cache_dir is not None:
            variables[CACHE_VARIABLE] = os.fspath(cache_dir)
        return {**variables, "PYTHONPATH": str(source.links(links or root()))}


class _Current(Environment):
    """The environment of this process, for workers that only keep their distance from it."""

    @property
    def python(self) -> Path:
        return Path(sys.executable)

    def variables(self, cache_dir: str | os.PathLike[str] | None = None, _: Path | None = None) -> dict[str, str]:
        return {**os.environ} if cache_dir is None else {**os.environ, CACHE_VARIABLE: os.fspath(cache_dir)}


def current() -> Environment:
    """The environment of this process. It is not under :func:`root`, and its workers have no links to isorun."""
    return _Current("current", Path(sys.prefix), platform.python_version(), ())


def root() -> Path:
    """The folder of all environments: ``$ISORUN_ENVIRONMENTS_DIR``, or under the user's data."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("isorun") / "environments"


def names() -> list[str]:
    """The names of the environments, sorted."""
    found = (record.parent.name for record in root().glob(f"*/{_RECORD}"))
    return sorted(name for name in found if _NAME.fullmatch(name))


def get(name: str) -> Environment:
    """The environment of that name.

    Raises:
        EnvironmentNotFound: it does not exist.
        EnvironmentBroken: its record cannot be read.
    """
    _check_name(name)
    folder = root() / name
    try:
        version, install = _read(folder / _RECORD)
    except FileNotFoundError:
        raise EnvironmentNotFound(name, names()) from None
    except (OSError, ValueError) as error:
        raise EnvironmentBroken(
            f"Cannot read the record of the environment {name!r} ({folder / _RECORD}: {error}). "
            f"If the folder is an environment, delete it and create it again: rm -r {shlex.quote(str(folder))}"
        ) from error
    return Environment(name, folder, version, install)


def create(name: str, *, python: str | None = None, install: Sequence[str] = ()) -> Environment:
    """Create an environment, or return the existing one if it was created with the same arguments.

    Args:
        name: letters, digits, dots, dashes and underscores.
        python: a version (``3.11``, ``3.11.7``) or an interpreter's path; ``None`` for the version that runs isorun.
        install: what to install, as for pip. isorun's own requirements (NumPy, stevedore, platformdirs, filelock) are
            added.

    Raises:
        EnvironmentBroken: the interpreter was not found, or the installation failed (nothing is left behind); or a
            folder of that name exists that isorun did not create.
        IsorunError: the environment exists with another Python or other requirements, or the name or a requirement is
            invalid.
    """
    _check_name(name)
    requirements = [requirement(each, Path.cwd()) for each in install]
    folder = root() / name
    with _lock(name):
        if (folder / _RECORD).is_file():
            existing = get(name)
            existing.require(python, requirements)
            return existing
        interpreter = interpreters.find(python)
        _delete(folder)  # left by an interrupted creation, since this process holds the lock
        record = {
            "python": ".".join(map(str, interpreter.version)),
            "install": requirements,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        scratch = _scratch(folder)
        scratch.mkdir()
        write_atomically(scratch / _PARTIAL, json.dumps(record, indent=1).encode())
        scratch.rename(folder)  # so that the folder always holds a record
        try:
            installing.make(folder, interpreter.path, requirements)
            (folder / _PARTIAL).rename(folder / _RECORD)
        finally:
            if not (folder / _RECORD).is_file():
                _delete(folder)
    return get(name)


def remove(name: str) -> None:
    """Remove an environment, also one whose creation was interrupted.

    Raises:
        EnvironmentNotFound: it does not exist.
        EnvironmentBroken: the folder of that name is not an environment that isorun created, or is a symbolic link.
            Nothing is deleted.
    """
    _check_name(name)
    folder = root() / name
    if not os.path.lexists(folder):
        raise EnvironmentNotFound(name, names())
    with _lock(name):
        _delete(folder)


def requirement(text: str, folder: Path) -> str:
    """A requirement as an environment's record holds it: paths become absolute, anything else is unchanged.

    Args:
        text: as for pip: a requirement, or the path of a distribution, which begins with ``.``, ``/`` or ``~``, or
            contains a ``/`` and exists.
        folder: the folder of relative paths.

    Raises:
        IsorunError: it is an option or blank, or the path does not exist.
    """
    if text.startswith("-") or not text.strip():
        raise IsorunError(f"install must be requirements, such as 'onnxruntime>=1.24', or paths, got {text!r}")
    place, bracket, extras = text.partition("[")
    path = Path(os.path.normpath(folder / expanded(place)))
    if not text.startswith((".", "/", "~")) and not ("/" in place and path.exists()):
        return text
    if not path.exists():
        raise IsorunError(f"Cannot install {text!r}: {path} does not exist")
    return f"{path}{bracket}{extras}"


def _listed(install: Sequence[str]) -> str:
    return ", ".join(install) or "no packages"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise IsorunError(
            f"Invalid environment name {name!r}. Use up to 64 letters, digits, dots, dashes and underscores, starting "
            "with a letter or digit"
        )


@contextmanager
def _lock(name: str) -> Iterator[None]:
    from filelock import FileLock

    folder = root()
    try:
        (folder / ".locks").mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".locks" / f"{name}.lock")
        lock.acquire()
    except OSError as error:
        raise EnvironmentBroken(
            f"Cannot write to the folder of environments {folder} ({error}). Set ${FOLDER_VARIABLE} to another folder"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _read(record: Path) -> tuple[str, tuple[str, ...]]:
    """The Python version and the requirements in a record.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a record.
    """
    match json.loads(record.read_text()):
        case {"python": str(version), "install": [*install]} if all(isinstance(each, str) for each in install):
            return version, tuple(install)
    raise ValueError("expected an object with 'python' and 'install'")


def _delete(folder: Path) -> None:
    """Delete an environment, complete or not, if the folder exists.

    Raises:
        EnvironmentBroken: isorun did not create it. Nothing is deleted.
    """
    if not os.path.lexists(folder):
        return
    if problem := _not_ours(folder):
        raise EnvironmentBroken(f"{folder} was not deleted: {problem}. Choose another name, or move it away.")
    scratch = _scratch(folder)
    folder.rename(scratch)  # so that an interrupted deletion leaves no folder without a record
    shutil.rmtree(scratch)


def _scratch(folder: Path) -> Path:
    """The path of an environment before its record exists and during its deletion; nothing exists there."""
    scratch = folder.with_name(f".{folder.name}.isorun-part")
    if scratch.is_symlink():
        raise EnvironmentBroken(f"{scratch} is a symbolic link, which isorun did not create. Delete it.")
    if scratch.exists():  # left by an interrupted process, since this one holds the lock
        shutil.rmtree(scratch)
    return scratch


def _not_ours(folder: Path) -> str:
    """Why a folder is not an environment that isorun created; empty if it is one."""
    if folder.is_symlink():
        return f"it is a symbolic link to {folder.readlink()}"
    if not folder.is_dir():
        return "it is not a folder"
    for record in (folder / _RECORD, folder / _PARTIAL):
        try:
            _read(record)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            return f"its {record.name} is not a record of isorun ({error})"
        return ""
    return f"isorun did not create it (it has no {_RECORD})"
