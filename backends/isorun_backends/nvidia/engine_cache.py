"""TensorRT engines on disk: the key of an engine, and the folders that engines may be loaded from.

An engine is machine code: loading an engine that someone else could have written means running their code. Engines are
only loaded from a folder that belongs to this user and that nobody else may write to.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isorun.plugin import BackendUnavailable, Cache, Entry, LoweredModel, sha256
from isorun_backends.nvidia import cuda_driver
from isorun_backends.nvidia.shape_profiles import Profile

_KIND = "engines"
_ENGINE = "engine.plan"
_TIMINGS = "timings"


@dataclass(frozen=True)
class Target:
    """What an engine is tied to besides the model.

    Attributes:
        runtime: TensorRT's version.
        gpu, compute: the GPU's name and compute capability.
        driver: the newest CUDA version that the driver supports.
    """

    runtime: str
    gpu: str
    compute: str
    driver: str

    @classmethod
    def of(cls, runtime: str, gpu: cuda_driver.Gpu) -> Target:
        """The target of a TensorRT version on a GPU of this machine."""
        return cls(runtime, gpu.name, gpu.compute, cuda_driver.driver().cuda)

    def timings(self, cache: Cache) -> Path:
        """The file of kernel timings, shared by all builds for this target."""
        return cache.root / _TIMINGS / f"{_digest(vars(self))}.bin"


def key(model: LoweredModel, precision: str, profiles: Sequence[Profile], target: Target, **settings: Any) -> str:
    """The key of an engine: everything that decides what the engine computes and whether it loads.

    The fingerprint covers the weights, so that models of the same structure with other weights have other keys.
    """
    return _digest(
        {
            "fingerprint": model.fingerprint,
            "lowered": f"{model.path.parent.name}/{model.path.name}",
            "dialect": model.dialect,
            "precision": precision,
            "profiles": [profile.as_plain() for profile in profiles],
            **vars(target),
            **settings,
        }
    )


def load_or_build(
    name: str, cache: Cache, identity: str, build: Callable[[], bytes], notes: Mapping[str, Any], fingerprint: str
) -> tuple[bytes, Entry]:
    """The bytes of an engine, built under a lock if it is not cached.

    Args:
        name: the backend's name.
        cache: the session's cache.
        identity: the engine's :func:`key`.
        build: builds the engine; called by the one process that holds the lock.
        notes: kept beside the engine for human readers.
        fingerprint: the model's.

    Raises:
        BackendUnavailable: the folder is not private to this user.
    """
    private_folder(name, cache.root / _KIND)

    def make(folder: Path) -> dict[str, Any]:
        (folder / _ENGINE).write_bytes(build())
        return dict(notes)

    entry = cache.get_or_make(_KIND, identity, make, models=[fingerprint])
    return (entry.folder / _ENGINE).read_bytes(), entry


def private_folder(name: str, folder: Path) -> None:
    """Create a folder for engines, or reject one that others can write to.

    Raises:
        BackendUnavailable: it belongs to another user, or others may write to it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "belongs to another user" if status.st_uid != os.getuid() else "is writable by others"
        raise BackendUnavailable(
            name,
            f"the engine folder {folder} {problem}, and engines are executable code",
            f"Run `chmod go-w {folder}`, or choose another cache with cache_dir=.",
        )


def _digest(parts: Mapping[str, Any]) -> str:
    return sha256(json.dumps(parts, sort_keys=True).encode())[:40]
