"""TensorRT engines on disk: the key of an engine, and building the one that is missing.

An engine is machine code: loading an engine that someone else could have written means running their code. The cache
rejects files that other users can write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isorun.plugin import Cache, Entry, LoweredModel, sha256
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
    cache: Cache, identity: str, build: Callable[[], bytes], notes: Mapping[str, Any], fingerprint: str
) -> tuple[bytes, Entry]:
    """The bytes of an engine, built under a lock if it is not cached.

    Args:
        build: builds the engine; called by the one process that holds the lock.
        notes: kept beside the engine for human readers.

    Raises:
        CacheError: another user may have written it.
    """

    def make(folder: Path) -> dict[str, Any]:
        (folder / _ENGINE).write_bytes(build())
        return dict(notes)

    entry = cache.get_or_make(_KIND, identity, make, models=[fingerprint])
    return (entry.folder / _ENGINE).read_bytes(), entry


def _digest(parts: Mapping[str, Any]) -> str:
    return sha256(json.dumps(parts, sort_keys=True).encode())[:40]
