"""Download a checkpoint into the cache and print its folder."""

from __future__ import annotations

from typing import Annotated

import typer

from isorun.cli import console, models, options
from isorun.system.cache import Cache

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="all-MiniLM-L6-v2, or an id on the Hugging Face hub.")],
    as_json: options.AsJson = False,
) -> None:
    """Download a checkpoint into the cache and print its folder."""
    folder = models.fetched(name, Cache())
    if not as_json:
        print(folder)
        return
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    console.json_out({"name": name, "folder": str(folder), "files": files})
