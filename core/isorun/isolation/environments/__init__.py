"""Virtual environments for backends that cannot share one.

``onnxruntime``, ``onnxruntime-gpu`` and ``onnxruntime-openvino`` are one import package and destroy each other;
DeepSparse wants an old Python. Each gets an environment of its own, where ``Session(..., environment=NAME)`` runs. ::

    environments.create("ovn", python="3.11", install=["onnxruntime-openvino==1.24.1"])

An environment is a folder under :func:`root`, made by uv where that is installed, else by venv and pip. Its record,
``environment.json``, has the suffix ``.partial`` until the environment is complete. isorun deletes or replaces a folder
only if it holds one of the two, and never follows a symbolic link. isorun itself is not installed there: it is imported
from where it runs (:mod:`isorun.isolation.environments.source`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
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
# What would have an environment's interpreter look elsewhere than into its own folder.
_STRANGE = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONSAFEPATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Environment:
    """An environment that was made.

    Attributes:
        name: what it is called.
        folder: where it is.
        version: of its Python, such as ``3.11.7``.
        install: what was asked to be installed, as given to pip; paths are absolute.
    """

    name: str
    folder: Path
    version: str
    install: tuple[str, ...]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def check(self) -> None:
        """Refuse an environment whose interpreter is gone: what it was made with was removed or moved.

        Raises:
            EnvironmentBroken: with the commands that make it anew.
        """
        if missing := self.missing():
            raise EnvironmentBroken(
                f"The interpreter of the environment {self.name!r} is gone: there is no {missing}. {self.remedy()}"
            )

    def missing(self) -> Path | None:
        """The interpreter's file, where that is gone."""
        if os.access(self.python, os.X_OK):
            return None
        return self.python.resolve() if self.python.is_symlink() else self.python

    def require(self, python: str | None, install: Sequence[str]) -> None:
        """Refuse it unless it was made from what is given.

        Args:
            python: as for :func:`create`; ``None`` for any.
            install: as :func:`requirement` gives them, in any order.

        Raises:
            IsorunError: it was made from something else, with the command that removes it.
        """
        if set(self.install) == set(install) and (python is None or interpreters.fits(python, self.version)):
            return
        asked = f"{f'Python {python}' if python else 'any Python'} and {_listed(install)}"
        raise IsorunError(
            f"The environment {self.name!r} was made with Python {self.version} and {_listed(self.install)}, "
            f"not with {asked}. Choose another name, or remove it first: isorun env remove {self.name}"
        )

    def remedy(self, *more: str) -> str:
        """The sentence that says how to make it anew, with more installed in it where that is given."""
        return f"Make it anew: {self.anew(*more)}"

    def anew(self, *more: str) -> str:
        """The commands that make it anew, with more installed in it where that is given."""
        wanted = [f"--python {'.'.join(self.version.split('.')[:2])}"]
        wanted += [f"--install {shlex.quote(each)}" for each in (*self.install, *more)]
        return f"isorun env remove {self.name} && isorun env create {self.name} {' '.join(wanted)}"

    def packages(self) -> dict[str, str]:
        """The versions of what is installed there, by name; isorun itself left out."""
        from importlib.metadata import distributions

        found = distributions(path=[str(installing.site_packages(self.folder))])
        versions = {each.name: each.version for each in found if each.name != source.NAME}
        return dict(sorted(versions.items(), key=lambda item: item[0].lower()))

    def size(self) -> int:
        """How many bytes its files hold. uv shares files between environments, so it may take less of the disk."""
        files = (Path(folder) / name for folder, _, names in os.walk(self.folder) for name in names)
        return sum(file.lstat().st_size for file in files)

    def variables(self, cache_dir: str | os.PathLike[str] | None = None, links: Path | None = None) -> dict[str, str]:
        """The environment variables of a process that runs there and imports the isorun that runs here.

        Args:
            cache_dir: the cache that it uses; ``None`` for this process's own.
            links: where the links to this isorun are, or are made; ``None`` for the folder of all environments.
        """
        kept = {name: value for name, value in os.environ.items() if name not in _STRANGE}
        if cache_dir is not None:
            kept[CACHE_VARIABLE] = os.fspath(cache_dir)
        return {**kept, "PYTHONPATH": str(source.links(links or root()))}


def root() -> Path:
    """The folder of all environments: ``$ISORUN_ENVIRONMENTS_DIR``, or under the user's data."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("isorun") / "environments"


def names() -> list[str]:
    """The names of the environments that were made, sorted."""
    found = (record.parent.name for record in root().glob(f"*/{_RECORD}"))
    return sorted(name for name in found if _NAME.fullmatch(name))


def get(name: str) -> Environment:
    """The environment of that name.

    Raises:
        EnvironmentNotFound: there is none.
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
            f"The record of the environment {name!r} cannot be read ({folder / _RECORD}: {error}). "
            f"If the folder is an environment, delete it and create it again: rm -r {shlex.quote(str(folder))}"
        ) from error
    return Environment(name, folder, version, install)


def create(name: str, *, python: str | None = None, install: Sequence[str] = ()) -> Environment:
    """Make an environment, or take the one that was made from the same.

    Args:
        name: letters, digits, dots, dashes and underscores.
        python: a version (``3.11``, ``3.11.7``) or an interpreter's path; ``None`` for the version that runs this.
        install: what to install, as given to pip. What isorun itself needs (NumPy, stevedore, platformdirs,
            filelock) comes with it.

    Raises:
        EnvironmentBroken: there is no such interpreter, or something cannot be installed (nothing is left behind); or
            a folder of that name exists that isorun did not create.
        IsorunError: one of that name was made from something else, or the name is no name.
    """
    _check_name(name)
    wanted = [requirement(each, Path.cwd()) for each in install]
    folder = root() / name
    with _lock(name):
        if (folder / _RECORD).is_file():
            made = get(name)
            made.require(python, wanted)
            return made
        interpreter = interpreters.find(python)
        _delete(folder)  # an interrupted creation: the lock says that none is under way
        record = {
            "python": ".".join(map(str, interpreter.version)),
            "install": wanted,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        scratch = _scratch(folder)
        scratch.mkdir()
        write_atomically(scratch / _PARTIAL, json.dumps(record, indent=1).encode())
        scratch.rename(folder)  # so that there is never one without a record
        try:
            installing.make(folder, interpreter.path, wanted)
            (folder / _PARTIAL).rename(folder / _RECORD)
        finally:
            if not (folder / _RECORD).is_file():
                _delete(folder)
    return get(name)


def remove(name: str) -> None:
    """Remove an environment and all that is installed there; also one whose creation was interrupted.

    Raises:
        EnvironmentNotFound: there is none.
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
    """What is to be installed, as an environment's record holds it: a path is made absolute, the rest stays.

    Args:
        text: as given to pip: a requirement, or the path of a distribution, which begins with ``.``, ``/`` or ``~``, or
            has a ``/`` and is there.
        folder: where relative paths start.

    Raises:
        IsorunError: it is an option or nothing, or there is no such path.
    """
    if text.startswith("-") or not text.strip():
        raise IsorunError(f"{text!r} is nothing to install: give a requirement, such as 'onnxruntime>=1.24', or a path")
    place, bracket, extras = text.partition("[")
    path = Path(os.path.normpath(folder / expanded(place)))
    if not text.startswith((".", "/", "~")) and not ("/" in place and path.exists()):
        return text
    if not path.exists():
        raise IsorunError(f"{text!r} is nothing to install: there is no {path}")
    return f"{path}{bracket}{extras}"


def _listed(install: Sequence[str]) -> str:
    return ", ".join(install) or "no packages"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise IsorunError(
            f"{name!r} cannot be an environment's name: letters, digits, dots, dashes and underscores make one, "
            "up to 64 of them, the first a letter or digit"
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
            f"The folder of environments {folder} cannot be written to ({error}). Choose another: ${FOLDER_VARIABLE}"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _read(record: Path) -> tuple[str, tuple[str, ...]]:
    """The version of Python and the requirements of a record.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a record.
    """
    match json.loads(record.read_text()):
        case {"python": str(version), "install": [*install]} if all(isinstance(each, str) for each in install):
            return version, tuple(install)
    raise ValueError("expected an object with 'python' and 'install'")


def _delete(folder: Path) -> None:
    """Delete an environment, complete or not, if there is one.

    Raises:
        EnvironmentBroken: the folder holds something else. Nothing is deleted.
    """
    if not os.path.lexists(folder):
        return
    if problem := _not_ours(folder):
        raise EnvironmentBroken(f"{folder} is not deleted: {problem}. Choose another name, or move it away yourself.")
    scratch = _scratch(folder)
    folder.rename(scratch)  # so that what is half deleted is not left without a record
    shutil.rmtree(scratch)


def _scratch(folder: Path) -> Path:
    """Where an environment is before its first record exists and while it is being deleted; nothing is there."""
    scratch = folder.with_name(f".{folder.name}.isorun-part")
    if scratch.is_symlink():
        raise EnvironmentBroken(f"{scratch} is a symbolic link, which isorun did not create. Delete it.")
    if scratch.exists():  # left by an interrupted process: the lock says that none is at work
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
            return f"its {record.name} is not a record of isorun's ({error})"
        return ""
    return f"isorun did not create it (it has no {_RECORD})"
