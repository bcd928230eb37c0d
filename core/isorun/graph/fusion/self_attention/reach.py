"""Which of the keys that are not masked a query attends to, and how that is read off a mask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

FINITE_MASK = -1e30  # with a mask value above this, the scores of a fully masked row still differ


@dataclass(frozen=True)
class Reach:
    """Which of the keys that are not masked a query attends to.

    Attributes:
        window: those up to a distance in tokens; ``None`` for any.
        causal: those that are not after it.
        paired: those of a query that is not masked as a key.
        by_pair: those of a mask of pairs.
    """

    window: int | None = None
    causal: bool = False
    paired: bool = False
    by_pair: bool = False

    def pairs(self, attend: np.ndarray) -> np.ndarray:
        """Which keys each query attends to, (B, S, S), of a key mask (B, S); in a mask of pairs, an example: the first
        query attends to all keys, the second to itself."""
        at = np.arange(attend.shape[1])
        behind = at[:, None] - at
        near = np.abs(behind) <= (len(at) if self.window is None else self.window)
        allowed = (attend != 0)[:, None, :] & near & ((behind >= 0) | (not self.causal))
        others = (at[:, None] != 1) & (at[:, None] * (at[:, None] + 2 * at) % 5 < 3)
        example = (behind == 0) | others
        allowed &= example | (not self.by_pair)
        return np.asarray(allowed & ((attend != 0)[:, :, None] | (not self.paired)))

    def __and__(self, other: Reach) -> Reach:
        windows = [mask.window for mask in (self, other) if mask.window is not None]
        flags = (getattr(self, name) or getattr(other, name) for name in ("causal", "paired", "by_pair"))
        return Reach(min(windows, default=None), *flags)


EVERY_KEY = Reach()


def reach_of_mask(result: np.ndarray, attend: np.ndarray, supposed: Reach = EVERY_KEY) -> tuple[Reach, float] | None:
    """The reach of a mask and its value for a masked key; ``None`` if it is not a mask.

    Args:
        result: (B, S), or (1 or B, 1 or N, 1 or S, S).
        attend: (B, S) bool, the keys that are attended to.
        supposed: the reach of its origin.
    """
    if result.ndim == 2:
        result = result[:, None, None, :]
    if result.ndim != 4:
        result = result.reshape(1, -1, *result.shape[-2:])
    attend = np.broadcast_to(attend, (max(len(result), len(attend)), attend.shape[1]))
    length = result.shape[-1]
    if result.shape[2] not in (1, length):  # queries that are not the tokens of the keys
        return None
    at = np.arange(length)
    distance = np.abs(at[:, None] - at)
    row = int(attend.sum(1).argmax())
    value = result[min(row, len(result) - 1), 0, 0, int(attend[row].argmax())]  # the first query and the nearest key
    masked = np.unique(result[result != value])
    if len(masked) == 2 and masked[0] == -np.inf and masked[1] < FINITE_MASK:  # both of two masks that are added up
        masked = masked[1:]
    if len(masked) != 1 or (result.dtype.kind == "f" and masked[0] > value):
        return None
    allowed = np.broadcast_to(result == value, (len(attend), result.shape[1], length, length))
    farthest = int(np.broadcast_to(distance[None, None], allowed.shape)[allowed].max(initial=0))
    window = None if farthest >= length - 1 else farthest
    for causal, paired in product((False, True), repeat=2) if not supposed.by_pair else ((False, False),):
        reach = supposed if supposed.by_pair else Reach(window, causal, paired)
        if np.array_equal(allowed, np.broadcast_to(reach.pairs(attend)[:, None], allowed.shape)):
            return reach, float(masked[0])
    return None


def is_within(short: Reach, long: Reach) -> bool:
    """Whether a reach may be that of the same mask for shorter rows."""
    return replace(short, window=long.window) == long and short.window in (None, long.window)
