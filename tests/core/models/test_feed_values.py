"""One feed of every type: tensors of any type, sequences, optional values, strings."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from isorun.errors import InvalidFeeds
from isorun.models.feeds import FeedChecker
from isorun.types import ModelInfo, TensorSpec

ONE = np.array([1, 2], np.float32)
MASKED = np.ma.array(ONE, mask=[True, False])


def checked(type_name: str, value: Any, shape: tuple[int | str | None, ...] | None = None) -> Any:
    checker = FeedChecker(ModelInfo((TensorSpec("x", type_name, shape),), (), 21))
    return checker.check({"x": value})["x"]


@pytest.mark.parametrize("holder", ["seq({})", "optional({})", "optional(seq({}))"])
@pytest.mark.parametrize(
    ("element", "value", "message"),
    [
        ("tensor(float)", ONE.astype(">f4"), "must be float32 .*, got >f4"),
        ("tensor(float)", ONE.astype(np.float64), "must be float32 .*, got float64"),
        ("tensor(float)", MASKED, "is a numpy.ma.MaskedArray"),
        ("tensor(float)", None, "must be a numpy.ndarray of float32, got NoneType"),
        ("tensor(string)", np.array([b"a"]), "must contain strings, got bytes"),
        ("tensor(string)", np.array([1], object), r"must contain strings, got 1 \(int\)"),
        ("tensor(string)", ONE, r"must contain strings, got np.float32\(1.0\)|must contain strings, got 1.0"),
        ("tensor(bfloat16)", ONE, "must be bfloat16 .*, got float32"),
    ],
)
def test_rejects_what_a_holder_must_not_hold(holder, element, value, message):
    if value is None and "seq" not in holder:
        assert checked(holder.format(element), None) is None
        return
    with pytest.raises(InvalidFeeds, match=message):
        checked(holder.format(element), [value] if "seq" in holder else value)


def test_converts_what_a_holder_holds():
    assert [item.dtype for item in checked("seq(tensor(float))", (ONE, [1, 2.5], np.ma.array(ONE)))] == [np.float32] * 3
    np.testing.assert_array_equal(checked("optional(tensor(int8))", [1, 2]), np.array([1, 2], np.int8))
    (words,) = checked("seq(tensor(string))", [np.array(["a\0b"])])
    assert words.dtype == object
    assert words.tolist() == ["a\0b"]
    assert checked("optional(seq(tensor(float)))", None) is None


ROUNDED = {
    "float": [[2**24 + 1], 2**63 - 2],
    "float16": [[[2049]]],
    "double": [[2**53 + 1]],
    "complex64": [[2**25 + 1]],
}
MASKED_LISTS = [[MASKED], [[MASKED, MASKED], [ONE, ONE]], (ONE, MASKED)]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        *(("seq(tensor(float))", value, "'x' must be a list") for value in (np.eye(2), None, 1.0, {"a": ONE})),
        ("seq(tensor(float))", [ONE, ONE.astype(np.float64)], r"Input 'x\[1\]' must be float32"),
        *(
            (f"tensor({kind})", value, f"{np.ravel(value)[0]} has no value for that type")
            for kind, values in ROUNDED.items()
            for value in values
        ),
        *(("tensor(float)", value, "MaskedArray") for value in MASKED_LISTS),
        *(("tensor(string)", value, "lone surrogate") for value in (["\ud800"], np.array(["ok", "a\udfff"], object))),
    ],
)
def test_rejects_a_value_of_another_type(kind, value, message):
    with pytest.raises(InvalidFeeds, match=message):
        checked(kind, value)


def test_an_optional_value_has_the_declared_shape():
    with pytest.raises(InvalidFeeds, match="'x' must have 1 dimension"):
        checked("optional(tensor(float))", ONE[None], ("n",))


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_types_that_numpy_lacks(dtype):
    type_name = f"tensor({dtype.replace('_', '').replace('m1fn', 'm1')})"
    value = np.array([0, 1]).astype(getattr(ml_dtypes, dtype))
    assert checked(type_name, value) is value
    for wrong in (ONE, np.zeros(2, np.uint8), [0, 1], np.ma.array(value, mask=[True, False]), 1):
        with pytest.raises(InvalidFeeds, match=f"ml_dtypes.{dtype}|MaskedArray"):
            checked(type_name, wrong)


def test_accepts_numbers_of_the_type_and_rounds_fractions():
    assert checked("tensor(float)", [2**24, 0.1])[1] == np.float32(0.1)
    assert checked("tensor(float16)", [2048, -2048]).tolist() == [2048, -2048]
