"""Feeds of every form on real runtimes; which feeds are rejected is in test_feeds.py."""

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


FORMS = {
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


@settings(derandomize=True, max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.tuples(*[st.sampled_from(sorted(FORMS))] * 3))
def test_the_form_of_an_array_does_not_matter(session, expected, forms):
    feeds = {name: FORMS[form](array) for form, (name, array) in zip(forms, FEEDS.items(), strict=True)}
    for found, right in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("value", [2, 2**32])
@pytest.mark.parametrize("bound", [False, True])
def test_rejects_a_mask_of_other_values_than_0_and_1(session, value, bound):
    feeds = {**FEEDS, "attention_mask": MASK * value}
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output(session.get_outputs()[0].name)
    with pytest.raises(InvalidFeeds, match="attention_mask"):
        session.run_with_iobinding(binding) if bound else session.run(None, feeds)
