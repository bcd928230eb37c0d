"""The commands of isorun and of other packages.

A command is a module with a ``typer.Typer`` called ``app``, which is imported when the command is used. ``isorun
--help`` imports none of them: it reads the first line of the module's docstring from the source. A package adds a
command with an entry point of the group ``isorun.commands``.
"""

from __future__ import annotations

import ast
import os
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer._completion_classes
from typer.core import TyperCommand

from isorun.cli import console
from isorun.errors import IsorunError

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = "isorun.commands"
COMMANDS = (
    *("backends", "models", "fetch", "build", "fuse", "inspect", "run", "choose", "embed", "vectors", "parity"),
    *("plugin", "doctor", "cache", "env"),
)
_COMPLETION = "_ISORUN_COMPLETE"  # set by shells that complete a command line
_MODULES = {"doctor": "doctor.command", "models": "families"}
"""The modules of other names: of ``doctor``, in a folder whose package runs where typer is absent."""

app = typer.Typer(
    name="isorun",
    help="Run any inference backend with one call, on the same fused encoder graph.",
    epilog="Run `isorun COMMAND --help` for the options of a command.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich takes longer to import than everything else together
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"isorun {metadata.version('isorun')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options before the command. ``isorun.cli.main`` handles ``--debug``."""


def command() -> Any:
    """The command line as a click group."""
    if _COMPLETION in os.environ:
        typer._completion_classes.completion_init()  # public through add_completion only
    group = typer.main.get_command(app)
    commands: dict[str, Any] = group.commands  # type: ignore[attr-defined]  # of a group, which this is
    own = [metadata.EntryPoint(name, f"isorun.cli.{_MODULES.get(name, name)}:app", GROUP) for name in COMMANDS]
    for point in [*own, *metadata.entry_points(group=GROUP)]:
        if point.name in commands:
            console.note(f"isorun: ignoring the command {point.name!r} of {_owner(point)}: the name is taken")
        else:
            commands[point.name] = _Unloaded(point)
    return group


class _Unloaded(TyperCommand):
    """A command that is imported when it is used."""

    def __init__(self, point: metadata.EntryPoint) -> None:
        super().__init__(point.name)
        self._point = point

    def get_short_help_str(self, limit: int = 45) -> str:
        """What it is for, which is read where commands are listed only."""
        self.help = _first_line(self._point.module) or f"A command of {_owner(self._point)}."
        return super().get_short_help_str(limit)

    def make_context(self, info_name: str | None, args: Any, parent: Any = None, **extra: Any) -> Any:
        """The context of the imported command, which the group then invokes."""
        try:
            loaded = self._point.load()
        except Exception as error:
            raise IsorunError(
                f"The command {self.name!r} cannot be imported ({type(error).__name__}: {error}). "
                f"Reinstall the distribution that provides it: {_owner(self._point)}"
            ) from error
        if not isinstance(loaded, typer.Typer):
            raise IsorunError(
                f"The command {self.name!r} of {_owner(self._point)} must be a typer.Typer, got {type(loaded).__name__}"
            )
        return typer.main.get_command(loaded).make_context(info_name, args, parent=parent, **extra)


def _owner(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else "isorun"


def _first_line(module: str) -> str | None:
    """The first line of a module's docstring, read without importing the module or its packages."""
    search: Sequence[str] | None = None
    origin = None
    parts = module.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), search)
        if spec is None:
            return None
        search, origin = spec.submodule_search_locations, spec.origin
    if origin is None or not origin.endswith(".py"):
        return None
    text = ast.get_docstring(ast.parse(Path(origin).read_bytes()))
    return text.partition("\n")[0] if text else None
