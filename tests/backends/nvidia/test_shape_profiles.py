"""Optimization profiles: declared, derived from observed shapes, selected for a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isorun.errors import BackendUnavailable, InvalidFeeds, InvalidOption
from isorun.types import ModelInfo, TensorSpec
from isorun_backends.nvidia.shape_profiles import Profile, declared, observed, select, shapes_for, symbols

INFO = ModelInfo(
    inputs=(
        TensorSpec("ids", "tensor(int64)", ("batch", "sequence")),
        TensorSpec("image", "tensor(float)", ("batch", 3, 8)),
        TensorSpec("fixed", "tensor(float)", (2,)),
    ),
    outputs=(TensorSpec("out", "tensor(float)", ("batch", "sequence", 4)),),
    opset=23,
    limits={"batch": None, "sequence": 384},
)


def sizes(*shapes):
    return [dict(profile.sizes) for profile in declared("tensorrt", INFO, list(shapes))]


def test_shapes_have_three_notations():
    assert symbols(INFO) == ["batch", "sequence"]
    assert sizes("1x128") == [{"batch": (1, 1, 1), "sequence": (128, 128, 128)}]
    assert sizes("1..8x1..64..128") == [{"batch": (1, 8, 8), "sequence": (1, 64, 128)}]
    assert sizes({"sequence": [1, 128], "batch": 4}) == [{"batch": (4, 4, 4), "sequence": (1, 128, 128)}]


def test_the_default_respects_the_models_limits():
    (profile,) = declared("tensorrt", INFO, None)
    assert dict(profile.sizes) == {"batch": (1, 8, 32), "sequence": (1, 128, 384)}
    assert str(profile) == "batch=1..8..32 sequence=1..128..384"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([], "empty"),
        (["1x128x2"], "batchxsequence"),
        (["ax128"], "batchxsequence"),
        (["8..1x128"], "ascending"),
        (["1x512"], "at most 384"),
        (["0x128"], "above 0"),
        ([{"batch": 1}], "'sequence'"),
        ([{"bach": 1, "sequence": 1}], "did you mean 'batch'"),
        ([3], "a string"),
    ],
)
def test_rejects_an_invalid_shape(shapes, message):
    with pytest.raises(InvalidOption, match=message) as caught:
        declared("tensorrt", INFO, shapes)
    assert caught.value.key == "shapes"


def test_a_dimension_without_a_default_must_be_declared():
    info = ModelInfo((TensorSpec("x", "tensor(float)", ("frames",)),), (), 23)
    with pytest.raises(BackendUnavailable, match="frames"):
        declared("tensorrt", info, None)
    assert declared("tensorrt", info, ["7"])[0].contains({"frames": 7})


def test_inputs_with_symbolic_dimensions_have_three_shapes():
    (profile,) = declared("tensorrt", INFO, ["1..2..4x8"])
    assert shapes_for(INFO, profile) == {
        "ids": ([1, 8], [2, 8], [4, 8]),
        "image": ([1, 3, 8], [2, 3, 8], [4, 3, 8]),
    }


def test_selects_the_profile_with_the_closest_optimum():
    profiles = declared("tensorrt", INFO, ["1..8..32x1..128..384", "1x128", "1..1..4x1..32..64"])
    assert select(profiles, {"batch": 1, "sequence": 128}) == 1
    assert select(profiles, {"batch": 1, "sequence": 30}) == 2
    assert select(profiles, {"batch": 32, "sequence": 384}) == 0
    with pytest.raises(InvalidFeeds, match=r"batch=33 sequence=1\b.*batch=1\.\.8\.\.32"):
        select(profiles, {"batch": 33, "sequence": 1})


pairs = st.fixed_dictionaries({"batch": st.integers(1, 64), "sequence": st.integers(1, 384)})


@given(pairs)
def test_an_observed_profile_contains_what_was_observed(sizes):
    profile = observed(sizes, INFO.limits)
    assert profile.contains(sizes)
    assert profile.sizes["sequence"][2] <= 384


@given(st.lists(pairs, min_size=1, max_size=8), pairs)
def test_the_selected_profile_contains_the_shape(declared_sizes, wanted):
    profiles = [Profile({name: (1, size, size) for name, size in maxima.items()}) for maxima in declared_sizes]
    fits = [profile.contains(wanted) for profile in profiles]
    if any(fits):
        assert fits[select(profiles, wanted)]
    else:
        with pytest.raises(InvalidFeeds):
            select(profiles, wanted)
