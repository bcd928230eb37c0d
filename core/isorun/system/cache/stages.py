"""The versions of the stages that make cache entries: the only part of a key that changes with isorun itself."""

from __future__ import annotations

import re

VERSIONS = {"builders": 17, "presets": 3, "lowering": 59, "calibration": 1, "tuning": 7}
"""Raise a stage's version when its output changes; ``tests/core/system/cache/test_stages.py`` fails if it is forgotten.

- ``builders``: the graph of a checkpoint (:mod:`isorun.models.checkpoint`, :mod:`isorun.graph.builders`)
- ``presets``: the sizes and weights of :mod:`isorun.models.presets`
- ``lowering``: reading, canonicalizing, fusing, describing, transforming and lowering (:mod:`isorun.graph`)
- ``calibration``: int8 tables (:mod:`isorun.graph.transforms.precision.ranges`)
- ``tuning``: what precisions and backends are judged and timed on, and the records of the results
"""

_VERSION = re.compile(r"-([a-z]+)(\d+)(?=-|$)")


def versioned(key: str, *stages: str) -> str:
    """A key with the versions of the stages that made the entry."""
    return "".join([key, *(f"-{stage}{VERSIONS[stage]}" for stage in stages)])


def is_outdated(key: str) -> bool:
    """Whether an entry was made by another version of a stage, so that this isorun cannot use it."""
    return any(VERSIONS.get(stage, int(version)) != int(version) for stage, version in _VERSION.findall(key))
