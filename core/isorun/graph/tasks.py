"""What heads of encoders are for. Imports nothing, since it is read before a graph is built."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SEQUENCE, TOKENS, ANSWERS, WORDS = (
    *("sequence-classification", "token-classification", "question-answering"),
    "masked-language-model",
)
TASKS: Mapping[str, str] = MappingProxyType(
    {
        "ForSequenceClassification": SEQUENCE,
        "ForTokenClassification": TOKENS,
        "ForQuestionAnswering": ANSWERS,
        "ForMaskedLM": WORDS,
    }
)
"""The tasks, by the endings of transformers' names of models in ``architectures``."""
