"""Compiled contexts: what a provider has compiled of a model, kept in the cache and loaded the next time.

ONNX Runtime writes them as a model whose compiled parts are ``EPContext`` nodes, beside the provider's files. They are
tied to the provider and its device, and are machine code: the cache loads them only from a folder of this user.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isorun.plugin import BackendFailed, Cache, LoweredModel, Option, sha256

if TYPE_CHECKING:
    import onnxruntime

COMPILED_CONTEXTS = Option(
    "keep what the provider compiles in the cache, if it supports ONNX Runtime's EPContext, and load it the next time",
    "bool",
    default=False,
)
_KIND = "contexts"
_MODEL = "model.onnx"
_REMEDY = "Set options={'compiled_contexts': False}: not every provider has contexts that it writes and loads again"
_logger = logging.getLogger("isorun")

Open = Callable[[LoweredModel, Mapping[str, str]], "onnxruntime.InferenceSession"]
"""Opens a session of a model, with more entries of ONNX Runtime's session configuration."""
Operators = dict[str, dict[str, int]]


class Opened(NamedTuple):
    """A session of compiled contexts.

    Attributes:
        operators: what ran where when it was compiled: the session itself reports ``EPContext`` nodes.
        found: whether the contexts were in the cache.
    """

    session: onnxruntime.InferenceSession
    operators: Operators
    found: bool


def key(model: LoweredModel, **settings: Any) -> str:
    """The key of a model's contexts: everything that decides what they compute and whether they load."""
    parts = {
        "fingerprint": model.fingerprint,
        "lowered": f"{model.path.parent.name}/{model.path.name}",
        "dialect": model.dialect,
        **settings,
    }
    return sha256(json.dumps(parts, sort_keys=True, default=str).encode())[:40]


def open_cached(
    name: str,
    model: LoweredModel,
    cache: Cache,
    identity: str,
    open_: Open,
    place: Callable[[onnxruntime.InferenceSession], Operators],
) -> Opened:
    """A session of the model's contexts, compiled under a lock if they are not in the cache.

    Contexts that the provider rejects, after an update of a driver for example, are compiled again.

    Args:
        place: checks what runs where in a session of the model itself, and counts it.

    Raises:
        BackendFailed: the provider writes no contexts, or does not load what it has written.
    """

    def make(folder: Path) -> dict[str, Any]:
        path = folder / _MODEL
        entries = {"ep.context_enable": "1", "ep.context_file_path": str(path), "ep.context_embed_mode": "0"}
        try:
            operators = place(open_(model, entries))
        except BackendFailed as error:
            raise BackendFailed(f"{error}. {_REMEDY}") from error.__cause__
        if not path.is_file():
            raise BackendFailed(f"{name} wrote no compiled context for {model.path}. {_REMEDY}")
        return {"operators": operators}

    again = False
    while True:
        entry = cache.get_or_make(_KIND, identity, make, [model.fingerprint], private=True, again=again)
        try:
            session = open_(replace(model, path=entry.folder / _MODEL), {})
        except BackendFailed as error:
            if not entry.found:
                raise BackendFailed(f"{error}. {_REMEDY}") from error.__cause__
            _logger.warning(
                "%s compiles %s again: its context in the cache does not load (%s)", name, model.path, error
            )
            again = True
        else:
            return Opened(session, entry.meta["operators"], entry.found)
