"""Show, verify, trim or clear the cache."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from isorun.cli import CHECK_FAILED, console, options
from isorun.errors import in_words
from isorun.system.cache import Cache, maintenance
from isorun.system.cache.files import expanded, size_in_bytes

_SHA256 = re.compile("[0-9a-f]{64}")

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything that is not in use.")] = False,
    remove: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Remove what was made from this model (path or SHA-256)."),
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Remove what was not used for the longest time until at most SIZE remains (such as 20GB).",
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file of every entry.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show, verify, trim or clear the cache.

    Removed entries are made again when they are needed. The exit code is 1 if --verify finds a damaged entry, or if
    one that is not in use could not be removed.
    $ISORUN_CACHE_LIMIT sets the limit that is enforced automatically: 10 GiB or a tenth of the disk by default.
    """
    if clear + verify + (remove is not None) + (limit is not None) > 1:
        raise typer.BadParameter("--clear, --remove, --limit and --verify are mutually exclusive")
    held = Cache()
    if remove is not None or limit is not None:
        _remove_some(held, remove, limit, as_json=as_json)
        return
    items = list(maintenance.survey(held.root))
    counts = Counter(item.kind for item in items)
    sizes: Counter[str] = Counter()
    for item in items:
        sizes[item.kind] += item.bytes
    left = maintenance.clear(held.root) if clear else {}
    damaged: dict[Path, str] = {}
    if verify:
        with console.transfer("Verifying") as progress:
            errors = maintenance.damaged(held.root, full=True, progress=progress)
        damaged = {path: in_words(error) for path, error in errors.items()}
    if as_json:
        listed = {kind: {"entries": count, "bytes": sizes[kind]} for kind, count in counts.items()}
        document = {"folder": str(held.root), "bytes": sizes.total(), "kinds": listed, "cleared": clear}
        document |= {"left": _by_name(held, left)} if clear else {}
        document |= {"damaged": _by_name(held, damaged)} if verify else {}
        console.json_out(document)
    elif clear:
        kept = sum(item.bytes for item in items if item.path in left)
        print(f"{held.root}\ncleared, {console.size(sizes.total() - kept)}")
    else:
        print(held.root)
        _table(counts, sizes)
    if not as_json:
        for name, why in _by_name(held, left).items():
            console.note(f"isorun: did not remove {name}: {why}")
        for name, why in _by_name(held, damaged).items():
            print(f"damaged: {name}: {why}")
        if damaged:
            console.note(
                "isorun: --clear removes everything; ISORUN_CACHE_VERIFY=1 replaces damaged entries when opened"
            )
        elif verify:
            print("no damaged entries")
    if damaged:
        raise typer.Exit(CHECK_FAILED)
    _check_removed(left)


def _remove_some(held: Cache, model: str | None, limit: str | None, *, as_json: bool) -> None:
    maintenance.check_used(held.root)
    if model is not None:
        removed, left = maintenance.remove(held.root, *_identity(model))
    else:
        try:
            size = size_in_bytes(limit or "")
        except ValueError as error:
            raise typer.BadParameter(f"--limit: {error}") from error
        removed, left = maintenance.trim(held.root, size)
    freed = sum(item.bytes for item in removed)
    if as_json:
        names = [item.path.relative_to(held.root).as_posix() for item in removed]
        console.json_out({"folder": str(held.root), "removed": names, "bytes": freed, "left": _by_name(held, left)})
    else:
        print(f"{held.root}\nremoved {len(removed)} entries, {console.size(freed)}")
        for name, why in _by_name(held, left).items():
            console.note(f"isorun: did not remove {name}: {why}")
    _check_removed(left)


def _check_removed(left: dict[Path, str]) -> None:
    if any("in use" not in why for why in left.values()):
        raise typer.Exit(CHECK_FAILED)


def _identity(model: str) -> tuple[str, Path | None, Iterable[Path]]:
    """The SHA-256 of a model that is given by it or by its path, the folder of its file, and its other files."""
    from isorun.models import checkpoint, tokenizer
    from isorun.models.source import open_model

    if _SHA256.fullmatch(model.lower()):
        return model.lower(), None, ()
    source = open_model(model, Cache())  # another cache, which does not keep what it opens
    path = expanded(model).absolute()
    parts = checkpoint.files_of(path) if path.is_dir() else ()
    return source.content, source.path.parent, (*parts, *tokenizer.places_of(source.path))


def _table(counts: Counter[str], sizes: Counter[str]) -> None:
    if not counts:
        print("empty")
        return
    print()
    rows = [(kind, count, console.size(sizes[kind])) for kind, count in counts.items()]
    right = ("entries", "size")
    console.table(("kind", "entries", "size"), [*rows, ("all", "", console.size(sizes.total()))], right=right)


def _by_name(held: Cache, reasons: dict[Path, str]) -> dict[str, str]:
    return {path.relative_to(held.root).as_posix(): why for path, why in reasons.items()}
