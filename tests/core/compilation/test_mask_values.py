"""Masks with other values than 0 and 1, masks of more dimensions, and inverted ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends
import counting
import exports
import isorun
import mask_forms
import small_bert
from bindings import bound
from isorun.errors import InvalidFeeds, UnsupportedModel
from isorun.types import Feeds, ModelInfo, TensorSpec

LENGTH = 24
REAL = np.ones((5, LENGTH), np.int64)
REAL[1, LENGTH // 2 :] = REAL[2, : LENGTH // 3] = REAL[3, 1::2] = REAL[4] = 0
SEGMENTS = REAL * np.where(np.arange(LENGTH) < LENGTH // 2, 1, 2)
RANDOM = np.random.default_rng(0).integers(-1, 4, REAL.shape)
INVERTED = ("inverted", "inverted boolean", "inverted comparison")
CHECKED = ("lowered", "boolean", "positive", "product", "three", "three boolean", "three inverted", *INVERTED)
ALIKE = 1e-4


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def pairs(mask: np.ndarray) -> np.ndarray:
    """Masks of queries and keys, other ones for each row."""
    return np.asarray(mask[:, None, :] * np.tri(LENGTH, dtype=np.int64))


def masks(form: str) -> list[np.ndarray]:
    rank = mask_forms.FORMS[form][0]
    if rank == 2:
        return [REAL, SEGMENTS, -REAL, RANDOM]
    return [pairs(REAL), pairs(RANDOM & 1)] if rank == 3 else [REAL[:, None, None], RANDOM[:, None, None] & 1]


def assert_equal(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Equal to the raw runtime where that returns numbers; the fused form never returns NaN."""
    for result, right in zip(outputs, expected, strict=True):
        known = np.isfinite(right)
        np.testing.assert_allclose(result[known], right[known], atol=ALIKE, rtol=ALIKE)


@pytest.mark.sampled(11)
@pytest.mark.parametrize("dtype", ["int64", "float"])
@pytest.mark.parametrize("form", mask_forms.FORMS)
@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_runs_as_the_raw_runtime_does(backend: str, form: str, dtype: str, cache: Path) -> None:
    proto = mask_forms.model(form, dtype, mean=mask_forms.FORMS[form][0] == 2)
    threads = backends.threads(backend, 1)
    with isorun.Session(proto, backend, padding="keep", threads=threads, cache_dir=cache) as session:
        assert session.model_info.masks == (("attention_mask",) if form in CHECKED else ())
        for mask in masks(form):
            if form == "lowered" and backend == "openvino" and (mask > 1).any():
                continue  # OpenVINO's softmax of the largest numbers is NaN
            feeds = mask_forms.feeds(mask.astype(np.float32 if dtype == "float" else np.int64))
            assert_equal(session.run(None, feeds), exports.run(proto, feeds))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
@pytest.mark.parametrize("padding", ["keep", "auto", "remove"])
def test_one_row_of_a_mask_is_for_all_rows(backend: str, padding: str, cache: Path) -> None:
    """Where the model declares the batch of its mask apart, as PyTorch's older exporter does."""
    proto = mask_forms.model("lowered", shape="rows, sequence")
    with isorun.Session(proto, backend, padding=padding, threads=1, cache_dir=cache) as session:
        feeds = mask_forms.feeds(REAL)
        for mask in (REAL[1:2], REAL):
            feeds["attention_mask"] = mask
            (raw,) = exports.run(proto, feeds)
            real = np.broadcast_to(mask != 0, REAL.shape)
            assert_equal([session.run(None, feeds)[0][real]], [raw[real]])


@pytest.mark.parametrize("form", ["four", "four inverted"])
def test_runs_a_mask_of_queries_and_keys_by_head(form: str, cache: Path) -> None:
    proto = mask_forms.model(form, shape="batch, 1, sequence, sequence")
    with isorun.Session(proto, "ort-cpu", threads=1, cache_dir=cache) as session:
        feeds = mask_forms.feeds(pairs(REAL)[:, None])
        assert_equal(session.run(None, feeds), exports.run(proto, feeds))


def test_a_fraction_is_not_rounded_to_a_key(cache: Path) -> None:
    proto = mask_forms.model("lowered", "float")
    with isorun.Session(proto, "ort-cpu", padding="keep", threads=1, cache_dir=cache) as session:
        feeds = mask_forms.feeds(np.where(RANDOM > 0, 1, 0.5).astype(np.float32))
        assert_equal(session.run(None, feeds), exports.run(proto, feeds))


@pytest.mark.parametrize("padding", ["auto", "remove"])
def test_outputs_at_padding_are_zero_whatever_ran(padding: str, cache: Path) -> None:
    proto = mask_forms.model("lowered")
    with isorun.Session(proto, "ort-cpu", padding=padding, threads=1, cache_dir=cache) as session:
        assert "mask" not in session.provenance.details
        for mask in (REAL, SEGMENTS):
            feeds = mask_forms.feeds(mask)
            (raw,) = exports.run(proto, feeds)
            np.testing.assert_allclose(session.run(None, feeds)[0], raw * (mask != 0)[..., None], atol=ALIKE)
        note = session.provenance.details["mask"]
        assert note["values"].startswith("other than 0 and 1")
        assert note["operators"]


def test_a_binding_reads_its_mask_at_every_run(cache: Path) -> None:
    proto = mask_forms.model("lowered")
    with isorun.Session(proto, "ort-cpu", padding="keep", threads=1, cache_dir=cache) as session:
        feeds = mask_forms.feeds(REAL.copy())
        binding = bound(session, feeds)
        binding.bind_output("hidden")
        for mask in (REAL, SEGMENTS, RANDOM, REAL):
            feeds["attention_mask"][:] = mask
            session.run_with_iobinding(binding)
            assert_equal(binding.copy_outputs_to_cpu(), exports.run(proto, feeds))


def test_requests_with_other_values_share_no_batch_with_longer_ones(cache: Path) -> None:
    """The model as given may see the padding of a batch: a row of -1 has no key of its own in it."""
    proto = mask_forms.model("lowered")
    rows = [mask_forms.feeds(np.full((1, length), value)) for length in (5, 9) for value in (1, -1, 2)]
    with isorun.Session(proto, "ort-cpu", padding="keep", threads=1, cache_dir=cache) as session:
        alone = [session.run(None, row) for row in rows]
        with session.map(rows) as results:
            for outputs, expected in zip(results, alone, strict=True):
                np.testing.assert_allclose(outputs[0], expected[0], atol=1e-5)


@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_other_values_mean_keys_in_a_model_of_the_fused_form(backend: str, tmp_path: Path) -> None:
    path = small_bert.write(tmp_path / "model.onnx", num_hidden_layers=1)
    with isorun.Session(path, backend, threads=1, cache_dir=tmp_path / "cache") as session:
        for output, expected in zip(
            session.run(None, small_bert.feeds(SEGMENTS)), session.run(None, small_bert.feeds(REAL)), strict=True
        ):
            np.testing.assert_allclose(output, expected, atol=1e-5)


def test_int8_refuses_other_values(cache: Path) -> None:
    samples = [mask_forms.feeds(np.ones((32, LENGTH), np.int64))]
    with isorun.Session(
        mask_forms.model("lowered"), "ort-cpu", precision="int8", threads=1, calibration=samples, cache_dir=cache
    ) as session:
        session.run(None, mask_forms.feeds(REAL))
        message = r"'attention_mask' must contain 1 .* with precision='int8', .* got 2 at \[0, 12\]"
        with pytest.raises(InvalidFeeds, match=message):
            session.run(None, mask_forms.feeds(SEGMENTS))


def test_calibration_refuses_other_values(cache: Path) -> None:
    with pytest.raises(InvalidFeeds, match=r"'attention_mask' must contain 1 for real tokens and 0"):
        isorun.Session(
            *(mask_forms.model("lowered"), "ort-cpu"),
            precision="int8",
            calibration=[mask_forms.feeds(SEGMENTS)],
            cache_dir=cache,
        )


INFO = ModelInfo(
    (TensorSpec("mask", "tensor(int64)", ("b", "s")),),
    (TensorSpec("sum", "tensor(double)", ("b",)),),
    17,
    mask="mask",
    masks=("mask",),
)


def sums(feeds: Feeds) -> list[Any]:
    return [feeds["mask"].sum(axis=1, dtype=np.float64)]


def test_the_model_as_given_is_compiled_once_when_it_is_needed() -> None:
    model, backend, requested = counting.model(INFO, sums)
    model.run(["sum"], {"mask": REAL})
    assert (backend.runs, requested) == ({"main": 1}, [])
    for mask in (SEGMENTS, -REAL):
        model.run(["sum"], {"mask": mask})
    assert (backend.runs, requested) == ({"main": 1, "as given": 2}, ["as given"])
    model.close()
    assert backend.closed == {"main": 1, "as given": 1}


def test_a_failure_to_compile_the_model_as_given_is_raised() -> None:
    model, backend, _ = counting.model(INFO, sums, error=UnsupportedModel("no Equal here", ["Equal"]))
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match="no Equal here"):
            model.run(["sum"], {"mask": SEGMENTS})
    model.run(["sum"], {"mask": REAL})
    model.close()
    assert (backend.runs, backend.closed) == ({"main": 1}, {"main": 1})
