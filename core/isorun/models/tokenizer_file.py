"""Reads ``tokenizer.json``, whose author may be anybody, and guards every call into the package ``tokenizers``.

The package is Rust: a panic arrives as a ``BaseException``, and an allocation of the size that a damaged character map
states aborts the process. So what can abort is checked before, and panics are converted.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isorun.errors import InvalidModel, IsorunError
from isorun.system import json_files
from isorun.system.interruption import interrupts

LIMITS = json_files.Limits(size=64 << 20, values=3_000_000, unique=False)
"""The largest published files (Gemma's) have 35 MB and 2 million values. Their depth is checked part by part."""

_MAX_DEPTH = 32
_MAX_GROWTH = 4096  # bytes of normalized text for a byte of text; published tokenizers stay below 1,000
_MAX_REPLACEMENT = 256  # bytes that one character becomes in a character map; NFKC's longest has 33
_MAX_SPECIAL = 4096  # tokens that a post-processor adds


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Convert what a call into ``tokenizers`` raises, panics included, to :class:`InvalidModel`."""
    try:
        yield
    except IsorunError:
        raise
    except Exception as error:  # the library raises no narrower type
        if interrupts(error):
            raise
        raise InvalidModel(f"{path} is not a tokenizer that the package 'tokenizers' reads: {error}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # the class cannot be imported
            raise
        raise InvalidModel(f"{path} is damaged: the package 'tokenizers' panics: {error}") from error


def read(path: Path) -> dict[str, Any]:
    """The content of ``tokenizer.json``, checked so that opening and using it neither aborts nor exhausts memory.

    Raises:
        InvalidModel: it is too large, not JSON, or damaged.
    """
    try:
        document = json_files.read(path, LIMITS)
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{path} is not a tokenizer: it cannot be read: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise InvalidModel(f"{path} is not a tokenizer: it must contain an object with an object 'model'")
    growth = _growth(path, document.get("normalizer"))
    if growth > _MAX_GROWTH:
        raise InvalidModel(
            f"{path} is damaged: its normalizer may make a text {growth:.3g} times as long; the maximum is "
            f"{_MAX_GROWTH}"
        )
    for key in ("pre_tokenizer", "decoder"):
        for node in nodes(path, document.get(key)):
            if node.get("type") == "Precompiled":
                _check_character_map(path, node)
    if (count := _special_tokens(document.get("post_processor"))) > _MAX_SPECIAL:
        raise InvalidModel(f"{path} is damaged: its post-processor adds {count} tokens; the maximum is {_MAX_SPECIAL}")
    return document


def nodes(path: Path, component: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """A component such as the normalizer and, depth first, all of its parts.

    Raises:
        InvalidModel: it is nested too deeply.
    """
    if depth > _MAX_DEPTH:
        raise InvalidModel(f"{path} is damaged: its components are nested deeper than {_MAX_DEPTH}")
    if isinstance(component, dict):
        yield component
        component = list(component.values())
    if isinstance(component, list):
        for part in component:
            yield from nodes(path, part, depth + 1)


def _growth(path: Path, normalizer: Any) -> float:
    """How many bytes a byte of text may become."""
    growth, forms = 1.0, 1
    for node in nodes(path, normalizer):
        kind = node.get("type")
        if kind == "Replace":
            content, pattern = str(node.get("content", "")), node.get("pattern")
            literal = pattern.get("String") if isinstance(pattern, dict) else None
            matched = len(literal.encode()) if isinstance(literal, str) and literal else 1
            empty = not isinstance(literal, str)  # a regular expression may match between all characters
            growth *= max(1.0, len(content.encode(errors="replace")) / matched + empty)
        elif kind == "Prepend":
            growth *= 1 + len(str(node.get("prepend", "")).encode(errors="replace"))
        elif kind in ("NFC", "NFD", "NFKC", "NFKD", "BertNormalizer", "Lowercase"):
            forms = 11  # U+FDFA: 3 bytes to 33; a second form does not lengthen it again
        elif kind == "Precompiled" or "precompiled_charsmap" in node:
            growth *= _check_character_map(path, node)
    return growth * forms


def _check_character_map(path: Path, node: Mapping[str, Any]) -> int:
    """Check SentencePiece's precompiled character map: the size of a trie in bytes, the trie, and UTF-8 text.

    Returns:
        The number of bytes of its longest replacement.
    """

    def damaged(reason: str) -> InvalidModel:
        return InvalidModel(f"{path} is damaged: its precompiled character map {reason}")

    encoded = node.get("precompiled_charsmap")
    if not isinstance(encoded, str):
        raise damaged(f"must be a string, got {type(encoded).__name__}")
    if not encoded:
        return 1
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise damaged(f"is not base64: {error}") from error
    size = int.from_bytes(content[:4], "little")
    if len(content) < 8 or size % 4 or not 4 <= size <= len(content) - 4:
        raise damaged(f"states a trie of {size} bytes, but has {max(0, len(content) - 4)} after that number")
    text = content[4 + size :]
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise damaged(f"replaces characters with invalid UTF-8: {error}") from error
    longest = max(len(replacement) for replacement in text.split(b"\0"))
    if longest > _MAX_REPLACEMENT:
        raise damaged(f"replaces a character with {longest} bytes; the maximum is {_MAX_REPLACEMENT}")
    return max(1, longest)


def _special_tokens(processor: Any) -> int:
    """An upper bound of the tokens that a post-processor adds."""
    if isinstance(processor, list):
        return sum(map(_special_tokens, processor))
    if not isinstance(processor, dict):
        return 0
    specials = processor.get("special_tokens")
    lengths = {
        name: len(token["ids"])
        for name, token in (specials.items() if isinstance(specials, dict) else ())
        if isinstance(token, dict) and isinstance(token.get("ids"), list)
    }
    pieces = [piece for key in ("single", "pair") for piece in _list(processor.get(key)) if isinstance(piece, dict)]
    used = [piece.get("SpecialToken") for piece in pieces]
    added = sum(lengths.get(str(token.get("id")), 1) if isinstance(token, dict) else 0 for token in used)
    return added + _special_tokens(processor.get("processors"))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
