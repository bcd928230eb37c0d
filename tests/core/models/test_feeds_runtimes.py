"""Feeds in every form, on real runtimes: they are rejected, or the outputs are those of plain arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import isorun
import small_bert
from isorun.errors import InvalidFeeds

BACKENDS = ["ort-cpu", "openvino"]
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]])
FEEDS = small_bert.feeds(MASK)


@pytest.fixture(scope="module", params=BACKENDS)
def session(request, tmp_path_factory):
    pytest.importorskip({"ort-cpu": "onnxruntime", "openvino": "openvino"}[request.param])
    path = small_bert.write(tmp_path_factory.mktemp("bert") / "bert.onnx")
    with isorun.Session(path, request.param, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(session):
    return session.run(None, FEEDS)


def memory_map(array):
    from tempfile import TemporaryFile

    with TemporaryFile() as file:
        mapped = np.memmap(file, array.dtype, "w+", shape=array.shape)
    mapped[...] = array
    return mapped


def unaligned(array):
    return np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)


RIGHT = {
    "plain": np.array,
    "list": np.ndarray.tolist,
    "rows": list,
    "Fortran order": np.asfortranarray,
    "reversed": lambda array: array[::-1].copy()[::-1],
    "every other": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "unaligned": unaligned,
    "memory-mapped": memory_map,
    "matrix": lambda array: array.view(np.matrix),
    "record array": lambda array: array.view(np.recarray),
    "masked array without a mask": np.ma.array,
    "dtype with metadata": lambda array: array.astype(np.dtype("i8", metadata={"unit": "token"})),
}
WRONG = {
    "other byte order": lambda array: array.astype(">i8"),
    "other dtype": lambda array: array.astype(np.int32),
    "floats": lambda array: array.astype(float).tolist(),
    "strings": lambda array: array.astype("U4"),
    "objects": lambda array: array.astype(object),
    "structured": lambda array: np.zeros(array.shape, [("x", "i4"), ("y", "i4")]),
    "other rank": np.ravel,
    "empty": lambda array: array[:0],
    "0-d": lambda array: np.array(array[0, 0]),
    "None": lambda array: None,
    "ragged": lambda array: [[1], [1, 1]],
    "masked": lambda array: np.ma.masked_equal(array, array[0, 0]),
    **{
        f"{value} in place of one": lambda array, value=value: np.where(np.arange(array.size) == 7, value, array.flat)
        .reshape(array.shape)
        for value in (-1, 60, 2**31, 2**32, 2**32 + 1, -(2**32), 2**63 - 1, -(2**63))
    },
}  # fmt: skip


@settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.tuples(*[st.sampled_from(sorted(RIGHT))] * 3))
def test_the_form_of_an_array_does_not_matter(session, expected, forms):
    feeds = {name: RIGHT[form](array) for form, (name, array) in zip(forms, FEEDS.items(), strict=True)}
    for found, right in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_array_equal(found, right)


@settings(derandomize=True, max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(FEEDS)), st.sampled_from(sorted(WRONG)), st.sampled_from(sorted(RIGHT)))
def test_rejects_invalid_feeds(session, name, wrong, right):
    feeds = {key: RIGHT[right](array) for key, array in FEEDS.items()}
    with pytest.raises(InvalidFeeds):
        session.run(None, {**feeds, name: WRONG[wrong](FEEDS[name])})


@pytest.mark.parametrize("name", ["input_ids", "token_type_ids"])
@pytest.mark.parametrize("value", [-1, 60, 2**32, 2**32 + 1])
def test_rejects_an_index_outside_its_table_even_at_padding(session, name, value):
    """ONNX Runtime's EmbedLayerNormalization has indices of 32 bits: 2**32 + 1 would be 1 there."""
    mask = np.array([[1, 0, 0, 0, 0, 0, 0, 0] * 5])
    array = np.zeros_like(mask)
    array[0, 3] = value
    with pytest.raises(InvalidFeeds, match=rf"{name}.*{value}"):
        session.run(None, {**small_bert.feeds(mask), name: array})


@pytest.mark.parametrize("value", [2, -1, 2**31, 2**32, 2**32 + 1, -(2**32), 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("bound", [False, True])
def test_rejects_a_mask_of_other_values_than_0_and_1(session, value, bound):
    feeds = {**FEEDS, "attention_mask": MASK * value}
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output(session.get_outputs()[0].name)
    with pytest.raises(InvalidFeeds, match="attention_mask"):
        session.run_with_iobinding(binding) if bound else session.run(None, feeds)
