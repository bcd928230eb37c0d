"""Documents in the order of their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from isorun.system.arguments import check_count


class Ranked(NamedTuple):
    """A document in the order of its score.

    Attributes:
        position: its index among the documents.
        score: its score.
        text: the document.
    """

    position: int
    score: float
    text: str


def ranked(documents: Sequence[str], scores: npt.NDArray[np.float32], top_k: int | None) -> list[Ranked]:
    """Documents by their score, best first.

    Args:
        documents: the texts.
        scores: (documents,).
        top_k: how many to return; ``None`` for all.

    Raises:
        InvalidArgument: ``top_k`` is not a positive number.
    """
    top_k = check_count(top_k, "top_k", optional=True)
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [Ranked(int(index), float(scores[index]), documents[index]) for index in order]
