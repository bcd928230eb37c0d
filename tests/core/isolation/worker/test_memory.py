"""Shared memory segments."""

from __future__ import annotations

import os

import numpy as np
import pytest

from isorun.isolation.worker.memory import Segment, aligned

UINT8 = np.dtype(np.uint8)


def create(size=1000):
    segment, file = Segment.create(size)
    os.close(file)
    return segment


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 10_000_000])
def test_segment_has_at_least_the_requested_size(size):
    segment = create(size)
    assert segment.size >= max(size, 1)
    segment.view(UINT8, (segment.size,), 0)[-1] = 7
    assert segment.view(UINT8, (), segment.size - 1) == 7


def test_two_mappings_share_the_memory():
    segment, file = Segment.create(100)
    other = Segment(file, segment.size)
    segment.view(np.dtype(np.float32), (3,), 64)[...] = [1, 2, 3]
    np.testing.assert_array_equal(other.view(np.dtype(np.float32), (3,), 64), [1, 2, 3])


def test_offsets_are_aligned():
    assert [aligned(offset) for offset in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]
