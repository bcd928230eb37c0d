"""Values described as JSON and rebuilt."""

import json

import ml_dtypes
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


def round_trip(*values):
    """Values as the other process rebuilds them."""
    packing = Packing()
    described = json.loads(json.dumps([packing.describe(value) for value in values]))
    memory = np.zeros(packing.size, np.uint8)

    def view(dtype, shape, offset):
        return np.ndarray(shape, dtype, memory, offset)

    for array, offset in zip(packing.arrays, packing.offsets, strict=True):
        assert offset % 64 == 0
        view(array.dtype, array.shape, offset)[...] = array
    return [rebuild(description, view) for description in described]


def assert_same(received, value):
    if isinstance(value, np.ndarray):
        assert (received.dtype, received.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(received, value)
    elif isinstance(value, list):
        assert len(received) == len(value)
        for item, expected in zip(received, value, strict=True):
            assert_same(item, expected)
    elif isinstance(value, dict):
        assert list(received) == list(value)
        for key in value:
            assert_same(received[key], value[key])
    else:
        assert received == value
        assert type(received) is type(value)


@given(st.lists(VALUES, max_size=3))
def test_round_trip(values):
    for received, value in zip(round_trip(*values), values, strict=True):
        assert_same(received, value)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int4", "uint4"])
def test_types_that_numpy_lacks(name):
    array = np.array([[1, 2], [3, 0]]).astype(getattr(ml_dtypes, name))
    (received,) = round_trip(array)
    assert is_plain(array)
    assert_same(received, array)


def test_keeps_strides_and_byte_order():
    array = np.arange(24, dtype=">i4").reshape(2, 3, 4).transpose(2, 0, 1)[:, :, ::2]
    (found,) = round_trip(array)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "got object"),
        ({1, 2}, "got set"),
        (b"bytes", "got bytes"),
        (np.array([b"bytes"], object), "array of object"),
        (np.array(["2026-01-01"], "M8[D]"), "array of datetime64"),
        (np.zeros(1, [("a", int)]), "array of"),
        ([1, [object()]], "got object"),
    ],
)
def test_rejects_types_that_onnx_does_not_have(value, words):
    with pytest.raises(TypeError, match=words):
        round_trip(value)


def test_plain_values_are_described_by_dtype_and_shape():
    assert is_plain(np.zeros(3))
    assert is_plain(np.float32(1))
    assert not any(map(is_plain, [np.array(["a"]), np.array([None]), [1], 1.0, None]))


def test_keys_of_numpy_are_numbers_and_strings():
    (values,) = round_trip({np.int64(3): 1.0, np.str_("a"): 2})
    assert values == {3: 1.0, "a": 2}
