"""One environment: its interpreter, its packages, and how processes run in it."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isorun.errors import EnvironmentBroken, IsorunError
from isorun.isolation.environments import install as installing
from isorun.isolation.environments import interpreters, source
from isorun.system.cache import ENVIRONMENT_VARIABLE as CACHE_VARIABLE
from isorun.system.cache import size_of

FOLDER_VARIABLE = "ISORUN_ENVIRONMENTS_DIR"
# These make an interpreter look for packages outside its environment.
_UNSET = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONSAFEPATH", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Environment:
    """An existing environment.

    Attributes:
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

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"the environment {self.name!r}"

    def check(self) -> None:
        """Raise ``EnvironmentBroken``, with the commands that create it again, if its base interpreter was removed or
        moved."""
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
            f"The environment {self.name!r} already exists with Python {self.version} and {_listed(self.install)}, but "
            f"{requested} was requested. Choose another name, or remove it first: isorun env remove {self.name}"
        )

    def remedy(self, *more: str) -> str:
        """The sentence that says how to create it again, with more requirements if given."""
        return f"Create it again: {self.commands(*more)}"

    def commands(self, *more: str) -> str:
        """The commands that create it again, with more requirements if given."""
        options = [f"--python {'.'.join(self.version.split('.')[:2])}"]
        options += [f"--install {shlex.quote(requirement)}" for requirement in (*self.install, *more)]
        return f"isorun env remove {self.name} && isorun env create {self.name} {' '.join(options)}"

    def packages(self) -> dict[str, str]:
        """The versions of the installed distributions by name, without isorun."""
        from importlib.metadata import distributions

        installed = distributions(path=[str(installing.site_packages(self.folder))])
        versions = {package.name: package.version for package in installed if package.name != source.NAME}
        return dict(sorted(versions.items(), key=lambda item: item[0].lower()))

    def size(self) -> int:
        """The total size of its files in bytes. With uv it may take less disk space: environments share files."""
        return size_of(self.folder)

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
    """The environment of this process, for workers that need a process of their own, not other packages."""

    @property
    def python(self) -> Path:
        return Path(sys.executable)

    @property
    def title(self) -> str:
        return f"Python {self.version}"

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


def _listed(install: Sequence[str]) -> str:
    return ", ".join(install) or "no packages"
