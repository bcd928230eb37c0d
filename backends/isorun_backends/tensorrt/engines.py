"""Engines on disk: under which key one is kept, and from which folders one is loaded.

An engine is machine code: loading one that somebody else could have written is running what they wrote. It is only
loaded from a folder that belongs to this user and that nobody else may write to.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isorun.errors import BackendUnavailable
from isorun.system.cache import Cache, Entry, sha256
from isorun.types import LoweredModel
from isorun_backends.tensorrt.profiles import Profile

_KIND = "engines"
_ENGINE = "engine.plan"
_TIMINGS = "timings"


@dataclass(frozen=True)
class Place:
    """What an engine is tied to, besides the model.

    Attributes:
        runtime: TensorRT's version.
        gpu, compute: the GPU's name and compute capability.
        driver: the newest CUDA that the driver runs.
    """

    runtime: str
    gpu: str
    compute: str
    driver: str


def key(model: LoweredModel, precision: str, profiles: Sequence[Profile], place: Place, **settings: Any) -> str:
    """The key of an engine: every part of it decides what the engine computes, or whether it loads.

    The fingerprint is over the weights too, so graphs of one name and other weights have other keys; the folder of a
    lowered model is named by what lowered it.
    """
    parts = {
        "fingerprint": model.fingerprint,
        "lowered": model.path.parent.name,
        "dialect": model.dialect,
        "precision": precision,
        "profiles": [profile.as_plain() for profile in profiles],
        **vars(place),
        **settings,
    }
    return sha256(json.dumps(parts, sort_keys=True).encode())[:40]


def load_or_build(
    name: str, cache: Cache, identity: str, build: Callable[[], bytes], remember: Mapping[str, Any]
) -> tuple[bytes, Entry]:
    """An engine's bytes, built under a lock where it is not kept yet.

    Args:
        name: the backend's.
        cache: the session's.
        identity: the engine's :func:`key`.
        build: makes the engine; the one process that has the lock calls it.
        remember: what to keep beside it, for people.

    Raises:
        BackendUnavailable: the folder is not this user's alone.
    """
    folder = cache.root / _KIND
    own(name, folder)

    def make(place: Path) -> dict[str, Any]:
        (place / _ENGINE).write_bytes(build())
        return dict(remember)

    entry = cache.get_or_make(_KIND, identity, make)
    return (entry.folder / _ENGINE).read_bytes(), entry


def timings(cache: Cache, place: Place) -> Path:
    """Where the measured times of kernels are kept, for builds on one kind of GPU with one TensorRT."""
    return cache.root / _TIMINGS / f"{sha256(json.dumps(vars(place), sort_keys=True).encode())[:40]}.bin"


def own(name: str, folder: Path) -> None:
    """Make a folder of this user's, or refuse one that others could have written to.

    Raises:
        BackendUnavailable: it belongs to somebody else, or others may write to it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        whose = "belongs to somebody else" if status.st_uid != os.getuid() else "may be written to by others"
        raise BackendUnavailable(
            name,
            f"the folder of engines {folder} {whose}, and an engine is code that is run",
            f"chmod go-w {folder}, or choose another cache with cache_dir=.",
        )
