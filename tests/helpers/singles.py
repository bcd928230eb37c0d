"""Single requests of a BERT, and what each gets alone."""

from collections.abc import Sequence

import numpy as np

import isorun
import small_bert
from isorun.types import Feeds


def request(length: int, seed: int = 0, mask: Sequence[int] | None = None) -> dict[str, np.ndarray]:
    """A request without the batch's axis."""
    return small_bert.feeds(np.ones(length, np.int64) if mask is None else np.array(mask), seed)


def alone(session: isorun.Session, feeds: Feeds) -> list[np.ndarray]:
    """What a request gives in a batch of its own."""
    return [output[0] for output in session.run(None, {name: array[None] for name, array in feeds.items()})]


def assert_same(got: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    """Equal up to rounding: another batch is another order of sums."""
    for output, expected in zip(got, wanted, strict=True):
        assert output.shape == expected.shape
        np.testing.assert_allclose(output, expected, atol=2e-5)
