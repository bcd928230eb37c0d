"""One ``Session.run()`` over any inference backend, every backend taking the same fused BERT graph.

Importing this brings in the errors and nothing else. The other names are imported when they are first used, and
runtimes and graph libraries when a session needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from isorun.errors import (
    BackendFailed,
    BackendNotFound,
    BackendUnavailable,
    CacheError,
    DeadlineExceeded,
    EnvironmentBroken,
    EnvironmentNotFound,
    FetchFailed,
    InvalidArgument,
    InvalidFeeds,
    InvalidModel,
    InvalidOption,
    InvalidType,
    IsorunError,
    ParityError,
    QueueFull,
    SessionClosed,
    SpecError,
    TokenizerError,
    UnsupportedModel,
    WorkerDied,
    WorkerTimeout,
)

if TYPE_CHECKING:
    from isorun.models.tokenizer import TruncationWarning
    from isorun.session.io_binding import IOBinding
    from isorun.session.session import Session
    from isorun.text.classifier import Classifier
    from isorun.text.cross_encoder import CrossEncoder
    from isorun.text.embedder import Embedder
    from isorun.text.fill_mask import FillMask
    from isorun.text.hybrid_embedder import HybridEmbedder
    from isorun.text.multi_vector_embedder import MultiVectorEmbedder
    from isorun.text.question_answerer import QuestionAnswerer
    from isorun.text.sparse_embedder import SparseEmbedder
    from isorun.text.sparse_vectors import SparseVector, SparseVectors
    from isorun.text.token_classifier import TokenClassifier
    from isorun.types import Provenance, TensorSpec

    __version__: str

__all__ = [
    "Session",
    "Embedder",
    "SparseEmbedder",
    "MultiVectorEmbedder",
    "HybridEmbedder",
    "CrossEncoder",
    "Classifier",
    "TokenClassifier",
    "QuestionAnswerer",
    "FillMask",
    "SparseVector",
    "SparseVectors",
    "IOBinding",
    "Provenance",
    "TensorSpec",
    "IsorunError",
    "BackendFailed",
    "BackendNotFound",
    "BackendUnavailable",
    "CacheError",
    "DeadlineExceeded",
    "EnvironmentBroken",
    "EnvironmentNotFound",
    "FetchFailed",
    "InvalidArgument",
    "InvalidFeeds",
    "InvalidModel",
    "InvalidOption",
    "InvalidType",
    "ParityError",
    "QueueFull",
    "SessionClosed",
    "SpecError",
    "TokenizerError",
    "UnsupportedModel",
    "WorkerDied",
    "WorkerTimeout",
    "TruncationWarning",
]

_HOMES = {
    "Session": "isorun.session.session",
    "Embedder": "isorun.text.embedder",
    "SparseEmbedder": "isorun.text.sparse_embedder",
    "MultiVectorEmbedder": "isorun.text.multi_vector_embedder",
    "HybridEmbedder": "isorun.text.hybrid_embedder",
    "SparseVector": "isorun.text.sparse_vectors",
    "SparseVectors": "isorun.text.sparse_vectors",
    "CrossEncoder": "isorun.text.cross_encoder",
    "Classifier": "isorun.text.classifier",
    "TokenClassifier": "isorun.text.token_classifier",
    "QuestionAnswerer": "isorun.text.question_answerer",
    "FillMask": "isorun.text.fill_mask",
    "IOBinding": "isorun.session.io_binding",
    "Provenance": "isorun.types",
    "TensorSpec": "isorun.types",
    "TruncationWarning": "isorun.models.tokenizer",
}


def __getattr__(name: str) -> Any:
    """A public name on its first use (PEP 562)."""
    if name == "__version__":
        value = import_module("importlib.metadata").version("isorun")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'isorun' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
