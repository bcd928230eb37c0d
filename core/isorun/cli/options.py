"""Options that commands share: how they are written, and what they mean for a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from isorun.cli import models
from isorun.errors import InvalidArgument
from isorun.isolation import environments
from isorun.plugin import registry
from isorun.system import json_files
from isorun.system.threads import MOST
from isorun.types import PRECISIONS


def complete_backends(incomplete: str) -> list[str]:
    """What a shell completes ``ort-cpu,op`` to."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in ("auto", *registry.names()) if name.startswith(last)]


def complete_precisions(incomplete: str) -> list[str]:
    return [name for name in ("auto", *PRECISIONS) if name.startswith(incomplete)]


def complete_fixed_precisions(incomplete: str) -> list[str]:
    return [name for name in PRECISIONS if name.startswith(incomplete)]


def complete_environments(incomplete: str) -> list[str]:
    return [name for name in environments.names() if name.startswith(incomplete)]


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BackendNames = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="A backend, several in order of preference (A,B), or auto.",
        autocompletion=complete_backends,
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="fp32, bf16, fp16, int8, fp64, or auto (the fastest accurate one).",
        autocompletion=complete_precisions,
    ),
]
Threads = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=MOST, help="Threads of a run. Default: all usable cores.")
]
Environment = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Run in this isolated environment (see `isorun env`).",
        autocompletion=complete_environments,
    ),
]
Settings = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the backend; repeatable.")]


def backend_names(joined: str, *, local: bool = True) -> str | list[str]:
    """``--backend`` or ``--backends``: one name, or several in order. Rejects names of no backend, if local."""
    names = models.names(joined)
    for name in names:
        if local and (name != "auto" or len(names) > 1):
            registry.get(name)
    return names[0] if len(names) == 1 else names


def settings_of(options: Sequence[str] | None) -> dict[str, Any]:
    """``--option KEY=VALUE``, repeated, as ``Session(options=...)`` expects them."""
    settings: dict[str, Any] = {}
    for setting in options or ():
        key, equals, value = setting.partition("=")
        if not (key and equals):
            raise InvalidArgument(f"Invalid --option {setting!r}: expected KEY=VALUE")
        if key in settings:
            raise InvalidArgument(f"--option {key} is given twice. Pass one value")
        try:
            settings[key] = json_files.parse(value)
        except json_files.DuplicateKey as error:
            raise InvalidArgument(f"Invalid --option {setting!r}: {error}. Keep one") from None
        except ValueError:  # not JSON: a plain string
            settings[key] = value
    return settings
