"""Text in, vectors or scores out: sentence embeddings, rerankers and classifiers, without PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isorun.text.tokenizer import Token, Tokenized, Tokenizer

__all__ = ["Token", "Tokenized", "Tokenizer"]


def __getattr__(name: str) -> Any:
    """A public name on its first use (PEP 562): importing a module of this package imports no other."""
    if name in __all__:
        from isorun.text import tokenizer

        return getattr(tokenizer, name)
    raise AttributeError(f"module 'isorun.text' has no attribute {name!r}")
