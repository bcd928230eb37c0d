"""Content-addressed files on disk: lowered models, models built from checkpoints, downloads.

An entry is a folder ``KIND/KEY`` with an ``entry.json`` that names its kind and key, lists its files with their
SHA-256, and holds JSON of its maker. Entries are made in a temporary folder and renamed under a lock, so a process that
dies leaves no partial entry, and two processes that need the same entry make it once.

- Keys of what isorun makes end with the versions of the stages that make it (:mod:`isorun.system.cache.stages`).
- A file is trusted while its size, modification time, change time and inode are unchanged; otherwise its SHA-256
  decides. A damaged entry is made again. Bit rot changes no stamp: ``verify`` hashes every file.
- Only files of this user or root that nobody else can write to are used (:mod:`isorun.system.cache.trust`).
- Entries that a :class:`Cache` has opened stay locked as long as it exists, so they are not cleared.
"""

from isorun.system.cache.entries import Entry
from isorun.system.cache.files import expanded, is_private, sha256, size_of, write_atomically
from isorun.system.cache.scratch import scratch_folder
from isorun.system.cache.stages import versioned
from isorun.system.cache.store import ENVIRONMENT_VARIABLE, Cache

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "Cache",
    "Entry",
    "expanded",
    "is_private",
    "scratch_folder",
    "sha256",
    "size_of",
    "versioned",
    "write_atomically",
]
