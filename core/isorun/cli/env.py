"""Make, list or remove isolated environments, for backends that cannot share one."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isorun.cli import console
from isorun.errors import BackendUnavailable, EnvironmentBroken, WorkerDied
from isorun.isolation import environments
from isorun.isolation.environments import Environment

if TYPE_CHECKING:
    from isorun.isolation.worker.backend import Worker

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="Letters, digits, dots, dashes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def _env() -> None:
    """Make, list or remove isolated environments, for backends that cannot share one."""


@app.command()
def create(
    name: Name,
    python: Annotated[
        str | None,
        typer.Option(metavar="VERSION|PATH", help="The Python of it. Default: the version that runs isorun."),
    ] = None,
    install: Annotated[
        list[str] | None, typer.Option(metavar="REQUIREMENT", help="As given to pip; give it again for more.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an environment and say which backends answer there.

    One that was made from the same is taken as it is.
    """
    with console.working(f"Making the environment {name}"):
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
            "backends": ", ".join(described["backends"]) or "none answers",
        }
    )


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the environments: size, packages, and the backends that answer there."""
    listed = [_described(name) for name in environments.names()]
    if as_json:
        console.json_out(listed)
        return
    if not listed:
        print(f"There is no environment in {environments.root()}")
        return
    rows = [
        (each["name"], each["python"], console.size(each["size"]), ", ".join(each["backends"]), _packages(each))
        for each in listed
        if "trouble" not in each
    ]
    if rows:
        console.table(("environment", "python", "size", "backends", "packages"), rows, right=["size"])
    for each in listed:
        if "trouble" in each:
            print(f"\n{each['name']} is broken: {each['trouble']}")


@app.command()
def remove(name: Name) -> None:
    """Remove an environment and all that is installed there."""
    environments.remove(name)
    print(f"Removed {name}")


def _described(name: str) -> dict[str, Any]:
    try:
        return _describe(environments.get(name))
    except (EnvironmentBroken, WorkerDied) as error:  # one that is broken is a line, not the end of the list
        return {"name": name, "trouble": str(error)}


def _describe(environment: Environment) -> dict[str, Any]:
    from isorun.isolation.worker.backend import Worker

    with closing(Worker(environment)) as worker:
        backends = [name for name in worker.names() if _answers(worker, name)]
    return {
        "name": environment.name,
        "folder": str(environment.folder),
        "python": environment.version,
        "install": environment.install,
        "size": environment.size(),
        "packages": environment.packages(),
        "backends": backends,
    }


def _answers(worker: Worker, name: str) -> bool:
    try:
        return worker.get(name).availability().ok
    except BackendUnavailable:  # a broken plugin: `isorun backends --environment` says why
        return False


def _packages(each: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in each["packages"].items())
