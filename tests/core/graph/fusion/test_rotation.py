"""Queries and keys as their product reads them."""

import numpy as np
import pytest

from isorun.graph.fusion.self_attention import rotation
from isorun.graph.matching.report import CannotFuse


def test_reads_queries_by_head() -> None:
    value = np.arange(2 * 3 * 8).reshape(2, 3, 8)
    assert rotation.by_head(value, 4, 3, False, 2).shape == (2, 2, 3, 4)


def test_rejects_queries_that_are_not_one_per_token() -> None:
    """Landmarks (Nystromformer) are means over several tokens."""
    with pytest.raises(CannotFuse, match=r"shape \(6, 4, 4, 8\) for 6 rows of 16 tokens"):
        rotation.by_head(np.zeros((6, 4, 4, 8)), 32, 16, False, 6)
