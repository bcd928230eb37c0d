"""Whatever is wrong with a feed is said with its input's name; whatever is right passes."""

from types import MappingProxyType

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isorun.errors import InvalidFeeds
from isorun.models.feeds import FeedChecker
from isorun.types import ModelInfo, TensorSpec

LENGTH = 6
INFO = ModelInfo(
    inputs=(
        TensorSpec("input_ids", "tensor(int64)", ("batch", "length"), bounds=(0, 98)),
        TensorSpec("token_type_ids", "tensor(int64)", ("batch", "length"), bounds=(0, 1)),
        TensorSpec("extra", "tensor(float)", ("batch", 3, None)),
        TensorSpec("scale", "tensor(float)", (), overridable=True),
    ),
    outputs=(TensorSpec("out", "tensor(float)", ("batch",)),),
    opset=17,
    limits={"batch": None, "length": LENGTH},
)
CHECKER = FeedChecker(INFO)
NAMES = ["input_ids", "token_type_ids", "extra"]
DTYPES = {"input_ids": np.int64, "token_type_ids": np.int64, "extra": np.float32, "scale": np.float32}
OTHER_DTYPES = st.sampled_from(
    [
        np.bool_,
        np.int8,
        np.int16,
        np.int32,
        np.int64,
        np.uint8,
        np.uint64,
        np.float16,
        np.float32,
        np.float64,
        "S4",
        "U4",
        "O",
        ">i8",
        ">f4",
        "M8[s]",
        np.complex64,
    ]
)


def make(batch: int = 2, length: int = 5, extra: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "input_ids": random.integers(0, 99, (batch, length)),
        "token_type_ids": random.integers(0, 2, (batch, length)),
        "extra": random.random((batch, 3, extra), np.float32),
    }


right = st.builds(make, st.integers(1, 5), st.integers(1, LENGTH), st.integers(0, 5), st.integers(0, 9))


def assert_refused(feeds: object, *parts: str) -> None:
    with pytest.raises(InvalidFeeds) as caught:
        CHECKER.check(feeds)
    for part in parts:
        assert part in str(caught.value)


@given(right, st.booleans())
def test_accepts_valid_feeds(feeds, overridden):
    if overridden:
        feeds["scale"] = np.array(0.5, np.float32)
    CHECKER.check(feeds)
    CHECKER.check(MappingProxyType(feeds))


@given(right, st.sampled_from(NAMES), st.sampled_from(["reversed", "strided", "Fortran", "read-only", "a view"]))
def test_accepts_any_memory_layout(feeds, name, way):
    array = feeds[name]
    match way:
        case "reversed":
            feeds[name] = array[::-1]
        case "strided":
            feeds[name] = np.repeat(array, 2, axis=0)[::2]
        case "Fortran":
            feeds[name] = np.asfortranarray(array)
        case "read-only":
            array.flags.writeable = False
        case "a view":
            feeds[name] = array[...].view()
    CHECKER.check(feeds)


@given(right, st.text())
def test_rejects_an_unknown_name(feeds, name):
    assume(name not in DTYPES)
    assert_refused({**feeds, name: feeds["input_ids"]}, f"no input {name!r}")


def test_suggests_the_closest_name():
    feeds = make()
    feeds["input_id"] = feeds.pop("input_ids")
    assert_refused(feeds, "no input 'input_id'; did you mean 'input_ids'?")
    assert_refused({**make(), 3: make()["input_ids"]}, "no input 3")


@given(right, st.sampled_from(NAMES))
def test_rejects_a_missing_input(feeds, name):
    del feeds[name]
    assert_refused(feeds, f"No feed for {name!r}", "input_ids tensor(int64) [batch, length]", "scale")


@given(right, st.sampled_from([*NAMES, "scale"]), OTHER_DTYPES)
def test_rejects_a_wrong_dtype(feeds, name, dtype):
    feeds = {**feeds, "scale": np.array(0.5, np.float32)}
    assume(np.dtype(dtype) != np.dtype(DTYPES[name]))
    feeds[name] = np.zeros(feeds[name].shape, dtype)
    assert_refused(feeds, f"Input {name!r} must be {np.dtype(DTYPES[name])}", f"got {np.dtype(dtype)}", "astype")


@given(right, st.sampled_from([*NAMES, "scale"]), arrays.array_shapes(min_dims=0, max_dims=5, max_side=3))
def test_rejects_a_wrong_rank(feeds, name, shape):
    feeds = {**feeds, "scale": np.array(0.5, np.float32)}
    rank = feeds[name].ndim
    assume(len(shape) != rank)
    feeds[name] = np.zeros(shape, DTYPES[name])
    assert_refused(feeds, f"Input {name!r} must have {rank} dimension", f"got shape {list(shape)}")


@given(right, st.integers(0, 6))
def test_rejects_a_wrong_fixed_dimension(feeds, size):
    assume(size != 3)
    feeds["extra"] = np.zeros((len(feeds["extra"]), size, 2), np.float32)
    assert_refused(feeds, "Input 'extra'", "dimension 1 of [batch, 3, ?]", f"got {size}")


@given(right, st.sampled_from(NAMES), st.integers(1, 9))
def test_rejects_different_batches(feeds, name, batch):
    before = len(feeds[name])
    assume(batch != before)
    feeds[name] = np.zeros((batch, *feeds[name].shape[1:]), DTYPES[name])
    assert_refused(feeds, "the same batch", repr(name), str(before), str(batch))


def test_names_an_input_once_if_its_own_sizes_differ():
    ids = TensorSpec("input_ids", "tensor(int64)", ("N", "N"))
    checker = FeedChecker(ModelInfo(inputs=(ids,), outputs=INFO.outputs, opset=17, limits={"N": 9}))
    with pytest.raises(InvalidFeeds, match="Input 'input_ids' has dimensions of 2 and 5"):
        checker.check({"input_ids": np.ones((2, 5), np.int64)})


@pytest.mark.parametrize(("batch", "length", "symbol"), [(0, 5, "batch"), (2, 0, "length"), (0, 0, "batch")])
def test_rejects_empty_dimensions(batch, length, symbol):
    assert_refused(make(batch, length), "Input 'input_ids' is empty", f"its {symbol} dimension is 0")


def test_rejects_sequences_beyond_the_position_table():
    CHECKER.check(make(length=LENGTH))
    assert_refused(make(length=LENGTH + 1), f"at most {LENGTH}", f"got {LENGTH + 1}", "position")


@given(
    right,
    st.sampled_from(["input_ids", "token_type_ids"]),
    st.one_of(st.integers(-(2**63), -1), st.integers(99, 2**63 - 1), st.sampled_from([-1, 99, 2**31, 2**32, 2**62])),
    st.data(),
)
def test_rejects_an_index_outside_its_table(feeds, name, index, data):
    array = feeds[name]
    place = tuple(data.draw(st.integers(0, size - 1)) for size in array.shape)
    array[place] = index
    most = 98 if name == "input_ids" else 1
    assert_refused(feeds, f"Input {name!r}", f"got {index} at [{place[0]}, {place[1]}]", f"0 to {most}")
    feeds[name] = np.asfortranarray(array)
    assert_refused(feeds, f"{index} at [{place[0]}, {place[1]}]")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(("index", "fits"), [(-4, False), (-3, True), (2, True), (3, False)])
def test_bounds_below_zero_and_other_dtypes(dtype, index, fits):
    spec = TensorSpec("index", f"tensor({dtype})", (None,), bounds=(-3, 2))
    checker = FeedChecker(ModelInfo((spec,), (), 17))
    feeds = {"index": np.array([0, index, 0], dtype)}
    checker.check({"index": np.zeros(0, dtype)})
    if fits:
        checker.check(feeds)
    else:
        with pytest.raises(InvalidFeeds, match=rf"-3 to 2 .* got {index} at \[1\]"):
            checker.check(feeds)


class Quiet(np.ndarray):
    """An array whose comparisons and reductions report nothing, as a subclass may have them."""

    def __le__(self, limit):
        return np.ones(self.shape, bool)

    __lt__ = __ge__ = __gt__ = __eq__ = __le__

    def max(self, *_, **__):
        return 0

    argmax = argmin = min = max


@pytest.mark.parametrize("index", [-1, 99, 10**9])
@pytest.mark.parametrize("kind", ["masked", "without mask", "quiet", "matrix", "memmap"])
def test_rejects_an_index_that_a_subclass_hides(tmp_path, kind, index):
    ids = make()["input_ids"]
    ids[1, 2] = index
    match kind:
        case "masked":
            hidden = np.ma.masked_equal(ids, index)
        case "without mask":
            hidden = np.ma.array(ids)
        case "quiet":
            hidden = ids.view(Quiet)
        case "matrix":
            hidden = ids.view(np.matrix)
        case "memmap":
            hidden = np.memmap(tmp_path / "ids", ids.dtype, "w+", shape=ids.shape)
            hidden[...] = ids
    checker = FeedChecker(INFO)
    with pytest.raises(InvalidFeeds, match=r"filled" if kind == "masked" else rf"got {index} at \[1, 2\]"):
        checker.check({**make(), "input_ids": hidden})


@pytest.mark.parametrize("cls", [np.ma.MaskedArray, np.matrix, Quiet])
def test_an_instance_of_a_subclass_becomes_a_plain_array_without_a_copy(cls):
    feeds = make()
    array = CHECKER.check({**feeds, "input_ids": feeds["input_ids"].view(cls)})["input_ids"]
    assert type(array) is np.ndarray
    assert np.shares_memory(array, feeds["input_ids"])


def test_a_numpy_scalar_becomes_an_array():
    array = CHECKER.check({**make(), "scale": np.float32(0.5)})["scale"]
    assert (type(array), array.dtype, array.shape) == (np.ndarray, np.float32, ())


ODD_MASKS = [
    *((dtype, value) for dtype in ("int8", "int32", "int64", "float32") for value in (2, -1, -128)),
    *((dtype, 2**32) for dtype in ("int64", "uint64", "float32")),
    *(("int64", value) for value in (2**31, -(2**31), -(2**32), 2**63 - 1, -(2**63))),
    *(("uint8", value) for value in (2, 255)),
    *(("float64", value) for value in (float("nan"), float("inf"), -float("inf"))),
    *((dtype, value) for dtype in ("int8", "uint8", "int64", "float32") for value in (0, 1)),
]


@pytest.mark.parametrize(("dtype", "value"), ODD_MASKS)
def test_rejects_mask_values_other_than_0_and_1(dtype, value):
    """OpenVINO computes int64 in 32 bits: 2**32 would be padding there, and a real token elsewhere."""
    kind = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    spec = TensorSpec("attention_mask", f"tensor({kind})", ("batch", "length"), bounds=(0, 1))
    checker = FeedChecker(ModelInfo((spec,), (), 17, mask="attention_mask"))
    mask = np.ones((2, 3), dtype)
    mask[1, 0] = value
    for array in (mask, mask.T, mask[::-1]):
        if value in (0, 1):
            checker.check({"attention_mask": array})
        else:
            with pytest.raises(InvalidFeeds, match=r"'attention_mask' must contain 1 for real tokens and 0"):
                checker.check({"attention_mask": array})


@pytest.mark.parametrize(
    ("value", "rank"),
    [
        *((value, None) for value in (np.zeros(2, np.float64), np.zeros((2, 2), ">f4"), [[1.0], [2.0, 3.0]])),
        *(([1e300], 1), (-1e300, 0), ([10**400, 1.0], 1), ([[1], [-(10**50)]], 2)),
    ],
)
def test_rejects_what_the_type_does_not_hold(value, rank):
    shape = None if rank is None else (None,) * rank
    checker = FeedChecker(ModelInfo((TensorSpec("x", "tensor(float)", shape),), (), 17))
    with pytest.raises(InvalidFeeds, match="Input 'x'"):
        checker.check({"x": value})


@pytest.mark.parametrize("value", ["text", None, b"bytes", memoryview(b"ab"), object(), {"a": 1}, ["text"], [[1j]]])
@pytest.mark.parametrize("name", ["input_ids", "scale"])
def test_rejects_objects_that_are_not_arrays(name, value):
    assert_refused(
        {**make(), name: value}, f"Input {name!r} must be a numpy.ndarray", type(value).__name__, "numpy.asarray"
    )


def test_lists_and_numbers_become_arrays_where_nothing_is_lost():
    spec = TensorSpec("x", "tensor(float)", ("n",)), TensorSpec("n", "tensor(int64)", ())
    checker = FeedChecker(ModelInfo(spec, (), 17))
    checked = checker.check({"x": [1, 2.5], "n": 3})
    assert (checked["x"].dtype, checked["x"].tolist(), checked["n"].dtype) == (np.float32, [1, 2.5], np.int64)
    for wrong, message in (
        ({"x": [1.0], "n": 2.5}, "Input 'n' must be int64 .*, got float64"),
        ({"x": [[1.0], [2.0, 3.0]], "n": 3}, "Input 'x': cannot convert"),
        ({"x": [[1.0]], "n": 3}, "Input 'x' must have 1 dimension "),
        ({"x": [1.0], "n": 2**63}, f"Input 'n' is int64, and {2**63}"),
    ):
        with pytest.raises(InvalidFeeds, match=message):
            checker.check(wrong)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64", "int32"])
def test_lists_of_integers_of_any_type(dtype):
    checker = FeedChecker(ModelInfo((TensorSpec("x", f"tensor({dtype})", None),), (), 17))
    for values in ([1, 2], [[]]):
        array = checker.with_arrays({"x": values})["x"]
        assert (array.dtype, array.tolist()) == (dtype, values)


@pytest.mark.parametrize(("values", "unfit"), [([1, 300], 300), ([-129], -129), ([[1], [2**31]], 2**31)])
def test_an_integer_in_a_list_is_not_wrapped_around(values, unfit):
    checker = FeedChecker(ModelInfo((TensorSpec("x", "tensor(int8)", None),), (), 17))
    with pytest.raises(InvalidFeeds, match=f"Input 'x' is int8, and {unfit}"):
        checker.with_arrays({"x": values})


@pytest.mark.parametrize("feeds", [None, 3, "input_ids", [1, 2, 3], (), np.zeros((2, 5)), [("input_ids", 1)]])
def test_rejects_feeds_that_are_not_a_mapping(feeds):
    assert_refused(feeds, "Feeds must be a mapping", type(feeds).__name__)


def test_passes_other_types_to_the_runtime():
    specs = (
        TensorSpec("sequence", "seq(tensor(float))", None),
        TensorSpec("optional", "optional(tensor(float))", None),
        TensorSpec("strings", "tensor(string)", (2,)),
        TensorSpec("any", "tensor(float)", None),
    )
    checker = FeedChecker(ModelInfo(specs, (), 17))
    feeds = {"sequence": [], "optional": None, "strings": np.array(["a", "b"]), "any": np.zeros((1, 2, 3), np.float32)}
    checker.check(feeds)
    del feeds["optional"]  # may be omitted, as in ONNX Runtime
    assert checker.check(feeds)["optional"] is None
    assert "optional" not in feeds


def test_names_of_outputs():
    assert list(CHECKER.outputs(["out"])) == ["out"]
    assert list(CHECKER.outputs(None)) == list(CHECKER.outputs([])) == ["out"]
    with pytest.raises(InvalidFeeds, match=r"no output 'outt'; did you mean 'out'\?"):
        CHECKER.outputs(["out", "outt"])
    with pytest.raises(InvalidFeeds, match="no output 1; known: out"):
        CHECKER.outputs([1])
    one_letter = FeedChecker(ModelInfo((), (TensorSpec("o", "tensor(float)", None),), 17))
    for names in ("o", "", {"o"}, {"o": 1}, {"o": 1}.keys(), iter(["o"]), np.array(["o"]), 0, False):
        with pytest.raises(InvalidFeeds, match="must be a list or a tuple, got"):
            one_letter.outputs(names)


@pytest.mark.parametrize(
    ("bounds", "index", "valid"),
    [((-(2**63), 4), 5, "of at most 4"), ((2, 2**63 - 1), 1, "of at least 2"), ((-3, 2), 3, "from -3 to 2")],
)
def test_says_which_indices_are_valid(bounds, index, valid):
    spec = TensorSpec("index", "tensor(int64)", (None,), bounds=bounds)
    checker = FeedChecker(ModelInfo(inputs=(spec,), outputs=(), opset=17))
    with pytest.raises(InvalidFeeds, match=f"indices {valid} .*got {index} at"):
        checker.check({"index": np.array([index])})
