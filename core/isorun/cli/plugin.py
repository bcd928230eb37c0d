"""Write a new backend from a template."""

from __future__ import annotations

import ast
import importlib.util
import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer

import isorun
from isorun.errors import IsorunError
from isorun.plugin import names, registry

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

TEMPLATE = Path(isorun.__file__).parent / "plugin" / "template"
_STATIC_SHAPES = {
    '"primitive",': '"static",',
    "        dynamic_shapes=True,\n": "        # ENGINE: the sizes to compile for, and how many executables to keep.\n"
    "        static_shapes=StaticShapes(batches=(1, 4, 16), lengths=(32, 128, 512), executables=8),\n",
    "    RuntimeReport,\n": "    RuntimeReport,\n    StaticShapes,\n",
    '"""Load a model. ``config``': '"""Compile a model whose dimensions are all numbers. ``config``',
}
"""What differs in the template of a backend that compiles one shape at a time."""
_LEFT_BY_TOOLS = re.compile(r"\..*|__pycache__|dist|build|.*\.egg-info")


@app.callback()
def _plugin() -> None:
    """Write a new backend: a distribution that passes `isorun conformance` unchanged."""


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", show_default=False, help="Name of the backend, such as my-engine.")
    ],
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder to write. Default: ./isorun-NAME.")
    ] = None,
    static_shapes: Annotated[
        bool, typer.Option("--static-shapes", help="For an engine whose executables have one shape each.")
    ] = False,
) -> None:
    """Write a plugin with one backend to a new folder. Never overwrites anything."""
    _check(name)
    target = folder or Path(f"isorun-{name}")
    write(name, target, static_shapes=static_shapes)
    print(f"Wrote the backend {name!r} to {target}. Next:\n")
    print(f"  pip install -e '{target}[test]'\n  isorun conformance {name}\n")
    print("Then replace each place that is marked ENGINE.")


def write(name: str, target: Path, *, static_shapes: bool = False) -> None:
    """Write the template under another name, completely or not at all.

    Args:
        target: the folder, which must not exist.
        static_shapes: for an engine whose executables have one shape each.

    Raises:
        IsorunError: the folder exists.
    """
    if target.exists() or target.is_symlink():
        raise IsorunError(f"{target} already exists. Choose another folder with --folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as part:
        unfinished = Path(part) / "unfinished"
        for source in _files():
            written = unfinished / _named(str(source), name)
            written.parent.mkdir(parents=True, exist_ok=True)
            text = (TEMPLATE / source).read_text(encoding="utf-8")
            for old, new in _STATIC_SHAPES.items() if static_shapes and source.name == "backend.py" else ():
                text = text.replace(old, new)
            written.write_text(_named(text, name), encoding="utf-8")
        unfinished.rename(target)


def _files() -> list[Path]:
    """The template's files, without what tools have left in a working copy."""
    root = TEMPLATE.resolve()
    files = [path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file()]
    return [path for path in files if not any(_LEFT_BY_TOOLS.fullmatch(part) for part in path.parts)]


def _named(text: str, name: str) -> str:
    """Replace the template's name: as a package, as a class, and plain."""
    words = name.split("-")
    forms = {
        "isorun_template": f"isorun_{'_'.join(words)}",
        "Template": "".join(word.capitalize() for word in words),
        "template": name,
    }
    return re.sub("|".join(forms), lambda match: forms[match[0]], text)


def _check(name: str) -> None:
    if problem := names.problem_of_new(name):
        raise IsorunError(problem)
    if _named("Template", name) in _names_used():
        raise IsorunError(
            f"The class of a backend {name!r} would have the name of one of its module's imports. Choose another name"
        )
    if name in registry.names():
        raise IsorunError(f"A backend {name!r} already exists. Choose another name")
    package = _named("isorun_template", name)
    if importlib.util.find_spec(package) is not None:
        raise IsorunError(f"The package {package!r} of a backend {name!r} already exists. Choose another name")


def _names_used() -> set[str]:
    """The names that the template's module imports."""
    tree = ast.parse((TEMPLATE / "isorun_template" / "backend.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names}
