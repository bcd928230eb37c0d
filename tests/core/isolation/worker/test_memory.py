"""Segments, and when they come back."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from isorun.isolation.worker import memory
from isorun.isolation.worker.memory import Pool, Segment


@pytest.fixture
def pool():
    return Pool()


def new(pool, size=1000):
    segment, file = pool.new(size)
    os.close(file)
    return segment


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 10_000_000])
def test_a_segment_is_at_least_as_large_as_asked(pool, size):
    segment = new(pool, size)
    assert segment.size >= max(size, 1)
    whole = segment.view(np.dtype(np.uint8), (segment.size,), 0)
    whole[-1] = 7
    assert segment.view(np.dtype(np.int8), (), segment.size - 1) == 7


def test_two_mappings_are_one_memory(pool):
    segment, file = pool.new(100)
    other = Segment(segment.number, os.dup(file), segment.size)
    os.close(file)
    segment.view(np.dtype(np.float32), (3,), 64)[...] = [1, 2, 3]
    np.testing.assert_array_equal(other.view(np.dtype(np.float32), (3,), 64), [1, 2, 3])


def test_a_view_outlives_the_segment(pool):
    view = new(pool).view(np.dtype(np.int64), (4,), 0)
    gc.collect()
    view[...] = 5
    assert view.sum() == 20


def test_a_lent_segment_comes_back_with_its_last_array(pool):
    segment = new(pool)
    memory_lent = pool.lend(segment, 800)
    assert memory_lent.nbytes == 800
    whole = np.ndarray((100,), np.float64, memory_lent)
    row = whole[3:7].reshape(2, 2)
    del memory_lent, whole
    assert pool.take() is None
    row[...] = 3
    del row
    assert pool.take() is segment


def test_only_so_many_are_lent(pool):
    segments = [new(pool) for _ in range(memory._MOST_LENT + 1)]
    lent = [pool.lend(segment, 10) for segment in segments]
    assert lent[-1] is None
    assert all(each is not None for each in lent[:-1])
    lent.clear()
    assert pool.lend(segments[-1], 10) is not None


def test_what_was_lent_at_a_fork_is_not_used_again(pool):
    segment = new(pool)
    lent = pool.lend(segment, 10)
    pool.fork()
    del lent
    assert pool.take() is None
    assert pool.forgotten() == [segment.number]
    assert pool.forgotten() == []


def test_places_are_aligned():
    assert [memory.aligned(size) for size in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]
