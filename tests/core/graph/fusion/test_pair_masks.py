"""Masks of pairs: a value for each query and key, given or compared."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import exports
import isorun
import mask_forms
from isorun.graph import pipeline
from isorun.parity.samples import MASKS, random_feeds

GIVEN = ("three", "three boolean", "three inverted")
COMPARED = ("segments", "blocks")
ALIKE = 1e-4
Allowed = Callable[[np.ndarray, np.random.Generator], np.ndarray]

PAIRS: dict[str, Allowed] = {
    "of keys": lambda mask, _: np.broadcast_to(mask[:, None], (*mask.shape, mask.shape[1])),
    "of both": lambda mask, _: mask[:, None] & mask[..., None],
    "causal": lambda mask, _: mask[:, None] & np.tri(mask.shape[1], dtype=bool),
    "random": lambda mask, rng: mask[:, None] & (rng.random((*mask.shape, mask.shape[1])) < 0.5),
    "sparse": lambda mask, rng: mask[:, None] & (rng.random((*mask.shape, mask.shape[1])) < 0.1),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def kept(allowed: np.ndarray) -> np.ndarray:
    """The tokens whose results do not change: those of rows in which a key has no key, and those that are keys."""
    keys = allowed.any(axis=1)
    return keys | (keys & ~allowed.any(axis=2)).any(axis=1, keepdims=True)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("padding", ["keep", "remove"])
@pytest.mark.parametrize("form", GIVEN)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_given_pairs(backend: str, form: str, padding: str, cache: Path) -> None:
    proto = mask_forms.model(form)
    rng = np.random.default_rng(0)
    with isorun.Session(proto, backend, padding=padding, threads=1, cache_dir=cache) as session:
        assert session.model_info.fused["SelfAttention"] == 1
        for make in MASKS.values():
            for pairs in PAIRS.values():
                allowed = pairs(make(6, 21, rng) != 0, rng)
                feeds = mask_forms.feeds((allowed ^ ("inverted" in form)).astype(np.int64))
                (result,), (expected,) = session.run(None, feeds), exports.run(proto, feeds)
                of_keys = kept(allowed) if padding == "remove" else np.ones(allowed.shape[:2], bool)
                assert np.isfinite(result).all()
                np.testing.assert_allclose(result[of_keys], expected[of_keys], atol=ALIKE, rtol=ALIKE)
                assert not (result[~of_keys] != 0)[allowed.any(axis=(1, 2))[np.nonzero(~of_keys)[0]]].any()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("padding", ["keep", "auto", "remove"])
@pytest.mark.parametrize("form", COMPARED)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_segments(backend: str, form: str, padding: str, cache: Path) -> None:
    proto = mask_forms.model(form)
    rng = np.random.default_rng(0)
    with isorun.Session(proto, backend, padding=padding, threads=1, cache_dir=cache) as session:
        assert session.model_info.fused["SelfAttention"] == 1
        assert session.model_info.mask == ("attention_mask" if form == "segments" else None)
        for make in MASKS.values():
            mask = make(6, 21, rng)
            feeds = mask_forms.feeds(mask * (1 + np.cumsum(rng.random(mask.shape) < 0.2, axis=1)))
            (result,), (expected,) = session.run(None, feeds), exports.run(proto, feeds)
            of_keys = (mask != 0) if form == "segments" else np.ones(mask.shape, bool)
            np.testing.assert_allclose(result[of_keys], expected[of_keys], atol=ALIKE, rtol=ALIKE)
            if padding != "keep":
                assert not result[~of_keys & mask.any(axis=1, keepdims=True)].any()
        assert "mask" not in session.provenance.details


@pytest.mark.parametrize("form", [*GIVEN, *COMPARED])
def test_feeds_are_generated(form: str, cache: Path) -> None:
    proto = mask_forms.model(form)
    with isorun.Session(proto, "ort-cpu", threads=1, cache_dir=cache) as session:
        feeds = random_feeds(session.model_info, np.random.default_rng(0), batch=3, sequence=7)
        (result,), (expected,) = session.run(None, feeds), exports.run(proto, feeds)
        np.testing.assert_allclose(result, expected, atol=ALIKE, rtol=ALIKE)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dialect", ["primitive", "com.microsoft", "onnx", "static"])
@pytest.mark.parametrize("packed", [False, True])
def test_queries_without_a_key_in_fp16(packed: bool, dialect: str) -> None:
    proto = mask_forms.model("three")
    model = ir.serde.deserialize_model(proto)
    pipeline.fuse(model)
    pipeline.transform(model, pipeline.Target(packed=packed, precision="fp16", dialect=dialect))
    rng = np.random.default_rng(0)
    for make in MASKS.values():
        allowed = PAIRS["sparse"](make(6, 21, rng) != 0, rng)
        of_keys = kept(allowed) if packed else np.ones(allowed.shape[:2], bool)
        feeds = mask_forms.feeds(allowed.astype(np.int64))
        (result,) = exports.run(ir.serde.serialize_model(model), feeds)
        np.testing.assert_allclose(result[of_keys], exports.run(proto, feeds)[0][of_keys], atol=0.05)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dialect", ["primitive", "com.microsoft", "onnx", "static"])
def test_a_padded_query_that_is_read_in_fp16(dialect: str) -> None:
    label = "deberta-v3-sequence-torchscript17-eager"  # queries that are padding have no key; its head reads the first
    model = exports.fused(label)
    pipeline.transform(model, pipeline.Target(packed=True, precision="fp16", dialect=dialect))
    (logits,) = exports.run(model, exports.given(label))
    np.testing.assert_allclose(logits, exports.answers(label)[0], atol=0.02)
