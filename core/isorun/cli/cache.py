"""Show what the cache holds, or clear it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from isorun.cli import console
from isorun.system.cache import Cache

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_NOTE = re.compile(r"[0-9a-f]{32,64}(\.json)?")


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything in it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what the cache holds, or clear it.

    All of it is made again when it is needed.
    """
    root = Cache().root
    kinds = {folder.name: entries for folder in _folders(root) if (entries := _entries(folder))}
    sizes = {kind: sum(map(_bytes, entries)) for kind, entries in kinds.items()}
    total = sum(sizes.values())
    if clear:
        for entries in kinds.values():
            for entry in entries:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if as_json:
        listed = {kind: {"entries": len(entries), "bytes": sizes[kind]} for kind, entries in kinds.items()}
        console.json_out({"folder": str(root), "bytes": total, "kinds": listed, "cleared": clear})
        return
    print(root)
    if clear:
        print(f"cleared, {console.size(total)}")
    elif not kinds:
        print("empty")
    else:
        print()
        rows = [(kind, len(entries), console.size(sizes[kind])) for kind, entries in kinds.items()]
        console.table(("kind", "entries", "size"), [*rows, ("all", "", console.size(total))], right=("entries", "size"))


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _entries(folder: Path) -> list[Path]:
    """What is surely the cache's own: a folder that the user chose for it may hold other things."""
    if folder.name in ("entry-points", "fingerprints"):
        return [path for path in folder.iterdir() if path.is_file() and _NOTE.fullmatch(path.name)]
    return [path for path in folder.iterdir() if (path / "entry.json").is_file()]


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
