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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from isorun.errors import EnvironmentBroken, EnvironmentNotFound, IsorunError
from isorun.isolation.environments import install as installing
from isorun.isolation.environments import interpreters
from isorun.isolation.environments.environment import FOLDER_VARIABLE, Environment, current, root
from isorun.system import json_files, portable
from isorun.system.cache import expanded, write_atomically

__all__ = ["FOLDER_VARIABLE", "Environment", "create", "current", "get", "names", "remove", "requirement", "root"]

_RECORD = "environment.json"
_PARTIAL = f"{_RECORD}.partial"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def names() -> list[str]:
    """The names of the environments, sorted; none on a system that cannot isolate backends."""
    if not portable.CAN_PASS_DESCRIPTORS:
        return []
    folders = (record.parent.name for record in root().glob(f"*/{_RECORD}"))
    return sorted(name for name in folders if _NAME.fullmatch(name))


def get(name: str) -> Environment:
    """The environment of that name.

    Raises:
        EnvironmentNotFound: it does not exist.
        EnvironmentBroken: its record cannot be read.
        IsorunError: this system cannot isolate backends.
    """
    _check_system()
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
            invalid; or this system cannot isolate backends.
    """
    _check_system()
    _check_name(name)
    requirements = [requirement(specifier, Path.cwd()) for specifier in install]
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


def _check_system() -> None:
    if not portable.CAN_PASS_DESCRIPTORS:
        raise IsorunError(
            f"{platform.system()} does not support isolated environments: a process there cannot hand its sockets and "
            "memory to another. Omit environment=, and install one of the conflicting packages only"
        )


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
        lock = FileLock(folder / ".locks" / f"{name}.lock").acquire()
    except OSError as error:
        raise EnvironmentBroken(
            f"Cannot write to the folder of environments {folder} ({error}). Set ${FOLDER_VARIABLE} to another folder"
        ) from error
    with lock:
        yield


def _read(record: Path) -> tuple[str, tuple[str, ...]]:
    """The Python version and the requirements in a record.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a record.
    """
    match json_files.read(record):
        case {"python": str(version), "install": [*install]} if all(isinstance(item, str) for item in install):
            return version, tuple(install)
    raise ValueError("expected an object with 'python' and 'install'")


def _delete(folder: Path) -> None:
    """Delete an environment, complete or not, if the folder exists; raises ``EnvironmentBroken`` if it is not
    isorun's."""
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
