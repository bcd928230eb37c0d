"""Damage to a cache that its stamps do not show."""

import json
import os
from pathlib import Path

from isorun.system.cache import sha256


def rot(file: Path) -> None:
    """Flip a bit in the middle of an entry's file and have the record match its new stamp, as rot on the medium leaves
    the old one."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    status = file.stat()
    path = file.with_name("entry.json")
    record = json.loads(path.read_bytes())["content"]
    record["files"][file.name]["stamp"] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    path.write_text(json.dumps({"sha256": sha256(json.dumps(record).encode()), "content": record}))


def replace_in_place(path: Path, content: bytes) -> None:
    """Put other bytes under the same size, modification time and inode, as an archive of fixed times does."""
    before = path.stat()
    assert len(content) == before.st_size
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
