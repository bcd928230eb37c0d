"""Show, verify or clear the cache."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from isorun.cli import CHECK_FAILED, console
from isorun.system.cache import Cache, maintenance

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything that is not in use.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file of every entry.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show, verify or clear the cache.

    Cleared entries are made again when they are needed. With --verify, the exit code is 1 if an entry is damaged.
    """
    if clear and verify:
        raise typer.BadParameter("--clear and --verify are mutually exclusive")
    held = Cache()
    items = list(maintenance.survey(held))
    counts = Counter(item.kind for item in items)
    sizes: Counter[str] = Counter()
    for item in items:
        sizes[item.kind] += item.bytes
    left = maintenance.clear(held) if clear else {}
    damaged = _verify(held) if verify else {}
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


def _verify(held: Cache) -> dict[Path, str]:
    with console.transfer("Verifying") as progress:
        return maintenance.damaged(held, full=True, progress=progress)


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
