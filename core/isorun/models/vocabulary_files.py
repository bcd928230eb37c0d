"""Tokenizers of checkpoints without a ``tokenizer.json``: what older versions of transformers wrote in its place.

``vocab.txt`` (word pieces) and ``vocab.json`` with ``merges.txt`` (byte pairs) say what ``tokenizer.json`` would of the
vocabulary; :mod:`isorun.models.tokenizer_classes` builds the rest by class. A model of SentencePiece cannot be
converted by the package ``tokenizers``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isorun.errors import InvalidModel, TokenizerError
from isorun.system import json_files

WORD_PIECES, BYTE_PAIRS, MERGES = "vocab.txt", "vocab.json", "merges.txt"
_SENTENCEPIECE = ("sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model", "sentencepiece.model")
_SIZE = 64 << 20
_LIMITS = json_files.Limits(size=_SIZE, values=3_000_000, unique=False)
_CONVERT = (
    "Convert it once: pip install transformers sentencepiece protobuf, then in Python: from transformers import "
    "AutoTokenizer; AutoTokenizer.from_pretrained({folder!r}).save_pretrained({folder!r})"
)


def is_vocabulary(path: Path) -> bool:
    """Whether a file is a vocabulary, by its name."""
    return path.name.endswith((WORD_PIECES, BYTE_PAIRS))


def merges_of(path: Path) -> Path:
    """Where the merges of a vocabulary of byte pairs are."""
    return path.with_name(path.name.removesuffix(BYTE_PAIRS) + MERGES)


def unsupported(path: Path, kind: str | None) -> TokenizerError:
    """The error for a vocabulary of a class, or of none, whose tokenizer isorun does not build."""
    owner = f"the class {kind}" if kind else "a checkpoint without config.json and tokenizer_config.json"
    convert = _CONVERT.format(folder=str(path.parent))
    return TokenizerError(f"{path} does not say how texts are split, and isorun does not know it of {owner}. {convert}")


def reject_sentencepiece(folder: Path) -> None:
    """Raise ``TokenizerError`` if there is a model of SentencePiece, which has to be converted."""
    for name in _SENTENCEPIECE:
        if (folder / name).is_file():
            convert = _CONVERT.format(folder=str(folder))
            raise TokenizerError(f"{folder} has a model of SentencePiece ({name}) and no tokenizer.json. {convert}")


def read(path: Path) -> dict[str, Any]:
    """A vocabulary as ``tokenizer.json`` would have it.

    Raises:
        InvalidModel: it is damaged, or too large.
    """
    if path.name.endswith(WORD_PIECES):
        pieces = {token.rstrip(): number for number, token in enumerate(_lines(path))}  # as `tokenizers` reads it
        return {"model": {"type": "WordPiece", "vocab": pieces}}
    try:
        vocabulary = json_files.read(path, _LIMITS)
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{path} is not a vocabulary: it cannot be read: {error}") from error
    if not isinstance(vocabulary, dict) or not all(type(number) is int for number in vocabulary.values()):
        raise InvalidModel(f"{path} is not a vocabulary: it must be an object of tokens and their ids")
    merges = [line for line in _lines(merges_of(path)) if line and not line.startswith("#version")]
    return {"model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _SIZE:
            raise InvalidModel(f"{path} is damaged: it has more than {_SIZE >> 20} MiB")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{path} is not a vocabulary: it cannot be read: {error}") from error
    return text.removesuffix("\n").split("\n")
