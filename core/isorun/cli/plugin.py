"""Start a backend of your own: a distribution that installs and passes `isorun conformance` as it is."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer

import isorun
from isorun.errors import IsorunError
from isorun.plugin import registry

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

TEMPLATE = Path(isorun.__file__).parent / "plugin" / "template"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LEFT_BY_TOOLS = re.compile(r"\..*|__pycache__|dist|build|.*\.egg-info")


@app.callback()
def _plugin() -> None:
    """Start a backend of your own: a distribution that installs and passes `isorun conformance` as it is."""


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="Of the backend, such as my-engine.")],
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write it. Default: ./isorun-NAME.")
    ] = None,
) -> None:
    """Write a plugin with one backend, in a new folder. Nothing is ever written over."""
    _check(name)
    target = folder or Path(f"isorun-{name}")
    write(name, target)
    print(f"{target}: the backend {name!r}. Next:\n")
    print(f"  pip install -e '{target}[test]'\n  isorun conformance {name}\n")
    print("Then look for ENGINE in it, and put yours there.")


def write(name: str, target: Path) -> None:
    """Write the template under another name. The folder appears whole or not at all.

    Args:
        name: the backend's.
        target: the folder; it must not be there.

    Raises:
        IsorunError: it is there.
    """
    if target.exists() or target.is_symlink():
        raise IsorunError(f"{target} is there already, and nothing is written over. Choose another with --folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as part:
        made = Path(part) / "made"
        for source in _files():
            written = made / _named(str(source), name)
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(_named((TEMPLATE / source).read_text(encoding="utf-8"), name), encoding="utf-8")
        made.rename(target)


def _files() -> list[Path]:
    """The template's own files: one that is worked on holds what tools have left there, too."""
    root = TEMPLATE.resolve()
    found = [path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file()]
    return [path for path in found if not any(_LEFT_BY_TOOLS.fullmatch(part) for part in path.parts)]


def _named(text: str, name: str) -> str:
    """The same with the name in the template's place: as a package, as a class, as it is."""
    words = name.split("-")
    forms = {
        "isorun_template": f"isorun_{'_'.join(words)}",
        "Template": "".join(word.capitalize() for word in words),
        "template": name,
    }
    return re.sub("|".join(forms), lambda found: forms[found[0]], text)


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise IsorunError(
            f"{name!r} cannot be a backend's name: lower-case letters, digits and single dashes make one, "
            "the first a letter"
        )
    if name in registry.names():
        raise IsorunError(f"There is a backend {name!r} already: two of one name cannot be installed. Choose another")
    package = _named("isorun_template", name)
    if importlib.util.find_spec(package) is not None:
        raise IsorunError(f"The package {package!r} of a backend {name!r} is taken. Choose another name")
