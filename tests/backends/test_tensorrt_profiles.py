"""Optimization profiles: what may be declared, what is made of shapes that were seen, which one a shape takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isorun.errors import BackendUnavailable, InvalidFeeds
from isorun.types import ModelInfo, TensorSpec
from isorun_backends.tensorrt.profiles import Profile, declared, observed, select, shapes_for, symbols

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


def test_a_shape_is_written_in_three_ways():
    assert symbols(INFO) == ["batch", "sequence"]
    assert sizes("1x128") == [{"batch": (1, 1, 1), "sequence": (128, 128, 128)}]
    assert sizes("1..8x1..64..128") == [{"batch": (1, 8, 8), "sequence": (1, 64, 128)}]
    assert sizes({"sequence": [1, 128], "batch": 4}) == [{"batch": (4, 4, 4), "sequence": (1, 128, 128)}]


def test_without_any_most_of_what_encoders_are_given_and_no_more_than_the_model_takes():
    (profile,) = declared("tensorrt", INFO, None)
    assert dict(profile.sizes) == {"batch": (1, 8, 32), "sequence": (1, 128, 384)}
    assert str(profile) == "batch=1..8..32 sequence=1..128..384"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([], r"shapes is \[\]"),
        ("1x128", "shapes is '1x128'"),
        (["1x128x2"], "'1x128x2' is none of batchxsequence"),
        (["ax128"], "'ax128' is none of"),
        (["8..1x128"], r"sizes of 'batch' do not rise: \[8, 1\]"),
        (["1x512"], "sequence goes up to 384 in this model, and a shape asks for 512"),
        (["0x128"], r"the size of 'batch' is \[0\]"),
        ([{"batch": 1}], "has no 'sequence'"),
        ([{"bach": 1, "sequence": 1}], "no dimension 'bach'; did you mean 'batch'"),
        ([3], "a shape is 3"),
    ],
)
def test_what_means_nothing_is_refused(shapes, message):
    with pytest.raises(BackendUnavailable, match=message):
        declared("tensorrt", INFO, shapes)


def test_a_dimension_without_a_default_has_to_be_declared():
    info = ModelInfo((TensorSpec("x", "tensor(float)", ("frames",)),), (), 23)
    with pytest.raises(BackendUnavailable, match="a dimension 'frames', which has no default size"):
        declared("tensorrt", info, None)
    assert declared("tensorrt", info, ["7"])[0].holds({"frames": 7})


def test_each_input_gets_the_three_shapes_and_a_fixed_one_none():
    (profile,) = declared("tensorrt", INFO, ["1..2..4x8"])
    assert shapes_for(INFO, profile) == {
        "ids": ([1, 8], [2, 8], [4, 8]),
        "image": ([1, 3, 8], [2, 3, 8], [4, 3, 8]),
    }


def test_the_profile_nearest_to_its_best_is_taken():
    profiles = declared("tensorrt", INFO, ["1..8..32x1..128..384", "1x128", "1..1..4x1..32..64"])
    assert select(profiles, {"batch": 1, "sequence": 128}) == 1
    assert select(profiles, {"batch": 1, "sequence": 30}) == 2
    assert select(profiles, {"batch": 32, "sequence": 384}) == 0
    with pytest.raises(InvalidFeeds, match=r"batch=33 sequence=1\. The profiles: batch=1\.\.8\.\.32 .*; batch=1 "):
        select(profiles, {"batch": 33, "sequence": 1})


pairs = st.fixed_dictionaries({"batch": st.integers(1, 64), "sequence": st.integers(1, 384)})


@given(st.lists(pairs, min_size=1, max_size=20))
def test_what_was_seen_falls_into_what_is_made_of_it(seen):
    profiles = observed(seen, INFO.limits)
    for each in seen:
        assert profiles[select(profiles, each)].holds(each)
    assert len(profiles) <= len(seen)
    assert all(profile.sizes["sequence"][2] <= 384 for profile in profiles)


@given(st.lists(pairs, min_size=1, max_size=8), pairs)
def test_what_is_selected_holds_the_shape(declared_sizes, wanted):
    profiles = [Profile({name: (1, size, size) for name, size in each.items()}) for each in declared_sizes]
    fits = [profile.holds(wanted) for profile in profiles]
    if any(fits):
        assert fits[select(profiles, wanted)]
    else:
        with pytest.raises(InvalidFeeds):
            select(profiles, wanted)
