"""The cache: whether it can be written to, and entries that are not as they were made."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from isorun.system.cache import ENVIRONMENT_VARIABLE, Cache
from isorun.types import Finding


def findings(cache: Cache) -> Iterator[Finding]:
    """What is wrong with the cache's folder and what it holds."""
    nearest = next(path for path in (cache.root, *cache.root.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding(
            f"the cache {cache.root}",
            "error",
            f"{nearest} cannot be written to" if nearest.is_dir() else f"{nearest} is no folder",
            "a session keeps there what it makes of a model, and is not opened without it",
            f"export {ENVIRONMENT_VARIABLE}=$HOME/isorun-cache   # or any folder that you may write to",
        )
        return
    for folder, why in cache.damaged().items():
        yield Finding(
            f"the cache {cache.root}",
            "warning",
            f"{folder.relative_to(cache.root)} is damaged: {why}",
            "it is not used: whoever wants it makes it anew, which takes its time then",
            f"rm -r {shlex.quote(str(folder))}",
        )
