"""Late interaction: models with a vector for each token, as ColBERT, PyLate and sentence-transformers save them.

What a query and a document become: their lengths, the tokens that fill a query up, and the words that are not scored.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models import sentence_keys
from isorun.models.keys import check

QUERY, DOCUMENT = "query", "document"
TASKS = (QUERY, DOCUMENT)
"""What a text may be."""

STANFORD = "HF_ColBERT"
"""The name in ``architectures`` of a model that Stanford's ColBERT saved, with its projection among the weights."""
PROJECTION = "linear.weight"

METADATA = "artifact.metadata"
"""The file with the settings of such a model."""

_PYLATE = ("query_prefix", "document_prefix", "skiplist_words", "do_query_expansion", "attend_to_expansion_tokens")
_LENGTHS = ("query_length", "document_length")
_CLASSIC_LENGTH = 32  # of a query, in the paper


@dataclass(frozen=True)
class Expansion:
    """Tokens that fill a query up: https://arxiv.org/abs/2004.12832, section 3.2.

    Attributes:
        length: the number of tokens to which a query is filled up.
        strategy: ``fixed`` to cut longer queries to it, ``min`` to leave them.
        attend: whether the other tokens attend to them.
        token: the token; ``None`` for the tokenizer's mask, or else its end of a text.
    """

    length: int
    strategy: str = "fixed"
    attend: bool = False
    token: str | None = None


@dataclass(frozen=True)
class LateInteraction:
    """What is done to the tokens of queries and documents.

    Attributes:
        query_length, document_length: the maximum numbers of their tokens; ``None`` for the model's.
        expansion: of queries; ``None`` for none.
        skiplist_words: tokens that are not scored.
        skiplist_tasks: in which texts.
        markers: prompts that are one token each, which the tokenizer may have to be told.
        similarity: ``maxsim``, or ``meanmaxsim`` for the mean over the query's tokens.
    """

    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    skiplist_words: tuple[str, ...] = ()
    skiplist_tasks: tuple[str, ...] = (DOCUMENT,)
    markers: tuple[str, ...] = ()
    similarity: str = "maxsim"

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], name: str) -> LateInteraction:
        """The inverse of :func:`dataclasses.asdict`.

        Args:
            fields: the data.
            name: where they are, for messages.

        Raises:
            InvalidModel: they are damaged.
        """
        values = dict(check(fields, sentence_keys.LATE_INTERACTION, name))
        expansion = values.pop("expansion", None)
        tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **tuples}, expansion=_expansion(expansion, name))


def read(
    transformer: Mapping[str, Any], mask: Mapping[str, Any] | None, model: Mapping[str, Any], name: str
) -> LateInteraction | None:
    """The settings that sentence-transformers or PyLate saved.

    Args:
        transformer: those of the module that reads text (``sentence_bert_config.json``).
        mask: those of ``MultiVectorMask``; ``None`` without this module.
        model: ``config_sentence_transformers.json``, where PyLate keeps all of them.
        name: the folder, for messages.

    Returns:
        ``None`` for a model of another kind.

    Raises:
        InvalidModel: a value is invalid.
        UnsupportedModel: the module has lengths for queries, and the model nothing that scores its tokens.
    """
    if mask is None and not is_pylate(model):
        if stated := [key for key in (*_LENGTHS, "query_expansion") if transformer.get(key) is not None]:
            raise UnsupportedModel(f"{name}: {stated[0]} is supported with a MultiVectorMask module only")
        return None
    lengths = {key: model[key] for key in _LENGTHS if model.get(key) is not None}
    expansion = None
    if is_pylate(model) and model.get("do_query_expansion") is not False:
        length = lengths.pop("query_length", _CLASSIC_LENGTH)
        expansion = Expansion(length, attend=bool(model.get("attend_to_expansion_tokens")))
    if "query_expansion" in transformer:
        expansion = _expansion(transformer["query_expansion"], name)
    lengths |= {key: transformer[key] for key in _LENGTHS if key in transformer}
    if mask is None:
        mask = {"skiplist_words": model.get("skiplist_words", list(string.punctuation))}
    tasks = mask.get("skiplist_tasks") or (DOCUMENT,)
    return LateInteraction(
        **lengths,
        expansion=expansion,
        skiplist_words=tuple(mask.get("skiplist_words") or ()),
        skiplist_tasks=(tasks,) if isinstance(tasks, str) else tuple(tasks),
        markers=tuple(filter(None, (model.get(f"{task}_prefix") for task in TASKS))),
        similarity="meanmaxsim" if model.get("similarity_fn_name") == "meanmaxsim" else "maxsim",
    )


def is_pylate(model: Mapping[str, Any]) -> bool:
    """Whether ``config_sentence_transformers.json`` is PyLate's, before sentence-transformers had such models."""
    return any(key in model for key in (*_PYLATE, *_LENGTHS)) or model.get("model_type") == "ColBERT"


def prompts(model: Mapping[str, Any]) -> dict[str, str]:
    """The prompts of a model, PyLate's prefixes before them."""
    named = dict(model.get("prompts") or {})
    for task in TASKS:
        if prefix := model.get(f"{task}_prefix"):
            named[task] = prefix + named.get(task, "").removeprefix(prefix)
    return named


def stanford(metadata: Mapping[str, Any]) -> tuple[LateInteraction, dict[str, str]]:
    """The settings and the prompts of a model that Stanford's ColBERT saved.

    Args:
        metadata: the content of :data:`METADATA`; empty if there is none.
    """
    markers = {
        QUERY: metadata.get("query_token_id") or "[unused0]",
        DOCUMENT: metadata.get("doc_token_id") or "[unused1]",
    }
    settings = LateInteraction(
        document_length=metadata.get("doc_maxlen"),
        expansion=Expansion(
            metadata.get("query_maxlen") or _CLASSIC_LENGTH, attend=bool(metadata.get("attend_to_mask_tokens"))
        ),
        skiplist_words=tuple(string.punctuation) if metadata.get("mask_punctuation", True) else (),
        markers=tuple(markers.values()),
    )
    return settings, {task: f"{marker} " for task, marker in markers.items()}


def _expansion(fields: Mapping[str, Any] | None, name: str) -> Expansion | None:
    if not fields:
        return None
    values = check(fields, sentence_keys.EXPANSION, f"{name}: query_expansion")
    if "length" not in values:
        raise InvalidModel(f"{name}: query_expansion must have a length")
    return Expansion(**values)
