"""One ``Session.run()`` over any inference backend, every backend taking the same fused BERT graph.

Importing this brings in NumPy and the standard library; runtimes and graph libraries come when they are used.
"""

from isorun.binding import IOBinding
from isorun.errors import (
    BackendFailed,
    BackendNotFound,
    BackendUnavailable,
    CacheError,
    FetchFailed,
    InvalidFeeds,
    InvalidModel,
    IsorunError,
    ParityError,
    SpecError,
    UnsupportedModel,
)
from isorun.session import Session
from isorun.types import Provenance, TensorSpec

__all__ = [
    "Session",
    "IOBinding",
    "Provenance",
    "TensorSpec",
    "IsorunError",
    "BackendFailed",
    "BackendNotFound",
    "BackendUnavailable",
    "CacheError",
    "FetchFailed",
    "InvalidFeeds",
    "InvalidModel",
    "ParityError",
    "SpecError",
    "UnsupportedModel",
]
