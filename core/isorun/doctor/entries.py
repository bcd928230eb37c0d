"""The cache: whether it can be used, and entries that are not as they were made."""

from __future__ import annotations

import os
from collections.abc import Iterator

from isorun.errors import CacheError
from isorun.system.cache import ENVIRONMENT_VARIABLE, Cache, maintenance, trust
from isorun.types import Finding

_ANOTHER = f"export {ENVIRONMENT_VARIABLE}=$HOME/isorun-cache   # or any folder that only you may write to"


def findings(cache: Cache) -> Iterator[Finding]:
    """What is wrong with the cache's folder and what it holds. Files are hashed only where their stamp has changed."""
    subject = f"the cache {cache.root}"
    nearest = next(path for path in (cache.root, *cache.root.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        yield Finding(
            subject,
            "error",
            f"{nearest} cannot be written to" if nearest.is_dir() else f"{nearest} is no folder",
            "a session keeps there what it makes of a model, and is not opened without it",
            _ANOTHER,
        )
        return
    try:
        trust.check(cache.root)
    except CacheError as error:
        yield Finding(subject, "error", "it is not used: other users may write to it", str(error), _ANOTHER)
        return
    for folder, why in maintenance.damaged(cache).items():
        yield Finding(
            subject,
            "warning",
            f"{folder.relative_to(cache.root)} is damaged: {why}",
            "it is not used: a session that needs it makes it again. `isorun cache --verify` hashes every file, which "
            "also finds bit rot",
            "isorun cache --clear",
        )
