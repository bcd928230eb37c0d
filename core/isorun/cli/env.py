"""Create, list or remove isolated environments."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from isorun.cli import console, options
from isorun.errors import EnvironmentBroken, WorkerDied
from isorun.isolation import environments
from isorun.isolation.environments import Environment

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        show_default=False,
        help="Its name: letters, digits, dots, dashes, underscores.",
        autocompletion=options.complete_environments,
    ),
]


@app.callback()
def _env() -> None:
    """Create, list or remove isolated environments, for backends that conflict with each other."""


@app.command()
def create(
    name: Name,
    python: Annotated[
        str | None,
        typer.Option(metavar="VERSION|PATH", help="Python of the environment. Default: the version that runs isorun."),
    ] = None,
    install: Annotated[
        list[str] | None, typer.Option(metavar="REQUIREMENT", help="A requirement or path, as for pip. Repeatable.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Create an environment and list the backends that are available in it.

    Does nothing if it exists with the same Python and requirements.
    """
    with console.working(f"Creating the environment {name}"):
        described = _describe(environments.create(name, python=python, install=install or []))
    if as_json:
        console.json_out(described)
        return
    console.facts(
        {
            "environment": name,
            "folder": described["folder"],
            "python": described["python"],
            "size": console.size(described["size"]),
            "backends": ", ".join(described["backends"]) or "none available",
        }
    )


@app.command("list")
def list_(as_json: options.AsJson = False) -> None:
    """List the environments with their size, packages and available backends."""
    listed = [_described(name) for name in environments.names()]
    if as_json:
        console.json_out(listed)
        return
    if not listed:
        print(f"No environments in {environments.root()}")
        return
    rows = [
        (entry["name"], entry["python"], console.size(entry["size"]), ", ".join(entry["backends"]), _packages(entry))
        for entry in listed
        if "trouble" not in entry
    ]
    if rows:
        console.table(("environment", "python", "size", "backends", "packages"), rows, right=["size"])
    for entry in listed:
        if "trouble" in entry:
            print(f"\n{entry['name']} is broken: {entry['trouble']}")


@app.command()
def remove(name: Name) -> None:
    """Remove an environment and everything installed in it."""
    environments.remove(name)
    print(f"Removed {name}")


def _described(name: str) -> dict[str, Any]:
    try:
        return _describe(environments.get(name))
    except (EnvironmentBroken, WorkerDied) as error:  # the others are still listed
        return {"name": name, "trouble": str(error)}


def _describe(environment: Environment) -> dict[str, Any]:
    from isorun.isolation.worker.backend import Worker

    with closing(Worker(environment)) as worker:
        backends = [backend.name for backend in worker.descriptions() if backend.status == "available"]
    return {
        "name": environment.name,
        "folder": str(environment.folder),
        "python": environment.version,
        "install": environment.install,
        "size": environment.size(),
        "packages": environment.packages(),
        "backends": backends,
    }


def _packages(entry: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in entry["packages"].items())
