"""The cache: whether it can be used, and damaged entries."""

from __future__ import annotations

import os
from collections.abc import Iterator

from isorun.errors import CacheError, in_words
from isorun.system.cache import ENVIRONMENT_VARIABLE, Cache, maintenance, trust
from isorun.types import Finding

_CLEAR = "isorun cache --clear"
_ANOTHER = f"export {ENVIRONMENT_VARIABLE}=$HOME/isorun-cache   # or any folder that only you may write to"


def findings(cache: Cache) -> Iterator[Finding]:
    """The problems of the cache folder and its entries. Only files whose stamp has changed are hashed."""
    subject = f"the cache {cache.root}"
    nearest = next(path for path in (cache.root, *cache.root.parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        filled = nearest == cache.root and any(maintenance.survey(cache.root))
        opened = "only those that it has" if filled else "none without it"
        yield Finding(
            subject,
            "warning" if filled else "error",
            f"{nearest} cannot be written to" if nearest.is_dir() else f"{nearest} is not a folder",
            f"sessions store prepared models there, and open {opened}",
            _ANOTHER,
        )
        if not filled:
            return
    try:
        trust.check(cache.root)
    except CacheError as error:
        yield Finding(subject, "error", "other users can write to it, so it is not used", str(error), _ANOTHER)
        return
    for folder, reason in maintenance.damaged(cache.root).items():
        entry = folder.relative_to(cache.root)
        if isinstance(reason, CacheError):
            what = f"{entry} is not used, and sessions that need it do not open"
            # Nothing is removed from a folder that others can write to.
            yield Finding(subject, "error", what, str(reason), _ANOTHER if folder.parent == cache.root else _CLEAR)
        else:
            why = "sessions create it again. `isorun cache --verify` hashes all files and also finds bit rot"
            yield Finding(subject, "warning", f"{entry} is damaged: {in_words(reason)}", why, _CLEAR)
