"""What a model takes and gives, described and rebuilt."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from isorun.isolation.worker.values import Packing, is_plain, rebuild

NUMBERS = st.sampled_from(["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", "F", "D"])
ARRAYS = hnp.arrays(NUMBERS.map(np.dtype), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
STRINGS = hnp.arrays(object, hnp.array_shapes(max_dims=2, max_side=3), elements=st.text(max_size=5))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    ARRAYS | STRINGS | SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def through(*values):
    """Values as the other side rebuilds them."""
    packing = Packing()
    described = json.loads(json.dumps([packing.describe(value) for value in values]))
    memory = np.zeros(packing.size, np.uint8)

    def view(dtype, shape, at):
        return np.ndarray(shape, dtype, memory, at)

    for array, place in zip(packing.arrays, packing.places, strict=True):
        assert place % 64 == 0
        view(array.dtype, array.shape, place)[...] = array
    return [rebuild(each, view) for each in described]


def assert_same(found, value):
    if isinstance(value, np.ndarray):
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(found, value)
    elif isinstance(value, list):
        assert len(found) == len(value)
        for one, other in zip(found, value, strict=True):
            assert_same(one, other)
    elif isinstance(value, dict):
        assert list(found) == list(value)
        for key in value:
            assert_same(found[key], value[key])
    else:
        assert found == value
        assert type(found) is type(value)


@given(st.lists(VALUES, max_size=3))
def test_everything_comes_back(values):
    for found, value in zip(through(*values), values, strict=True):
        assert_same(found, value)


def test_a_layout_or_an_order_of_bytes_does_not_matter():
    array = np.arange(24, dtype=">i4").reshape(2, 3, 4).transpose(2, 0, 1)[:, :, ::2]
    (found,) = through(array)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_a_scalar_becomes_an_array_without_dimensions():
    (found,) = through(np.float16(1.5))
    assert (found.dtype, found.shape, found) == (np.float16, (), 1.5)


def test_what_is_not_a_number_stays_so():
    (found,) = through([float("nan"), float("-inf")])
    assert math.isnan(found[0])
    assert found[1] == -math.inf


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "a object, which is nothing"),
        ({1, 2}, "a set, which is nothing"),
        (b"bytes", "a bytes, which is nothing"),
        (np.array([b"bytes"], object), "an array of object"),
        (np.array(["2026-01-01"], "M8[D]"), r"an array of datetime64\[D\]"),
        (np.zeros(1, [("a", int)]), "an array of"),
        ([1, [object()]], "a object"),
    ],
)
def test_what_no_model_takes_is_refused(value, words):
    with pytest.raises(TypeError, match=words):
        through(value)


def test_plain_is_what_its_type_and_shape_describe():
    assert is_plain(np.zeros(3))
    assert is_plain(np.float32(1))
    assert not any(map(is_plain, [np.array(["a"]), np.array([None]), [1], 1.0, None]))
