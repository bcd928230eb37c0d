"""The commands together: isorun's own, and those that other packages add.

A command is a module with a ``typer.Typer`` called ``app``, imported when the command is used. The first line
of the module's docstring is its help, read from the source: ``isorun --help`` imports none of them. A package
adds one by an entry point of the group ``isorun.commands``, whose name is the command's.
"""

from __future__ import annotations

import ast
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from isorun.cli import console
from isorun.errors import IsorunError

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = "isorun.commands"
_OWN = (
    *("backends", "fetch", "build", "fuse", "prune", "inspect", "run", "parity"),
    *("conformance", "plugin", "doctor", "cache", "env"),
)

app = typer.Typer(
    name="isorun",
    help="One call for any inference backend, every backend taking the same fused BERT graph.",
    epilog="`isorun COMMAND --help` says more of each command.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # what draws boxes takes longer to import than everything else together
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"isorun {metadata.version('isorun')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Options before the command. ``main`` itself looks for ``--debug``: it is the one that shows errors."""


def command() -> Any:
    """The whole command line: a click group, for its ``main``."""
    group = typer.main.get_command(app)
    commands: dict[str, Any] = group.commands  # type: ignore[attr-defined]  # of a group, which this is
    own = [metadata.EntryPoint(name, f"isorun.cli.{name}:app", GROUP) for name in _OWN]
    for point in [*own, *metadata.entry_points(group=GROUP)]:
        if point.name in commands:
            console.note(f"isorun: the command {point.name!r} of {_owner(point)} is left out: the name is taken")
        else:
            commands[point.name] = _Unloaded(point)
    return group


class _Unloaded(TyperCommand):
    """A command that is imported once it is used."""

    def __init__(self, point: metadata.EntryPoint) -> None:
        super().__init__(point.name, help=_first_line(point.module) or f"A command of {_owner(point)}.")
        self._point = point

    def make_context(self, info_name: str | None, args: Any, parent: Any = None, **extra: Any) -> Any:
        """The context of the command itself: the group invokes what this names."""
        try:
            loaded = self._point.load()
        except Exception as error:
            raise IsorunError(
                f"The command {self.name!r} does not import ({type(error).__name__}: {error}). "
                f"Reinstall the distribution that provides it: {_owner(self._point)}"
            ) from error
        if not isinstance(loaded, typer.Typer):
            raise IsorunError(
                f"The command {self.name!r} of {_owner(self._point)} is a {type(loaded).__name__} and no typer.Typer"
            )
        return typer.main.get_command(loaded).make_context(info_name, args, parent=parent, **extra)


def _owner(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else "isorun"


def _first_line(module: str) -> str | None:
    """The first line of a module's docstring, without importing the module or its packages."""
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
