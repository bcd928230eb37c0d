"""Vectors of bytes and bits, as ``quantize_embeddings`` of sentence-transformers 6 computes them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import isorun
import sentence_models
from isorun.errors import InvalidArgument
from isorun.text.vector_types import quantized

TEXTS = ["a b c", "b", "c c a b", "a a"]
OPTIONS = {"backend": "ort-cpu", "default_prompt": "query"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_models.write_sentence_model(tmp_path_factory.mktemp("sentences"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[isorun.Embedder]:
    with isorun.Embedder(folder, **OPTIONS) as embedder:
        yield embedder


def expected(vectors: np.ndarray, kind: str, ranges: np.ndarray | None) -> np.ndarray:
    """The formulas of sentence-transformers 6."""
    if ranges is not None:
        steps = (ranges[1] - ranges[0]) / 255
        values = np.clip(np.floor((vectors - ranges[0]) / steps), 0, 255)
        return (values - 128).astype(np.int8) if kind == "int8" else values.astype(np.uint8)
    packed = np.packbits(vectors > 0).reshape(len(vectors), -1)
    return (packed - 128).astype(np.int8) if kind == "binary" else packed


@given(arrays(np.float32, (5, 16), elements=st.floats(-1, 1, width=32)))
def test_values_are_those_of_the_formulas(vectors: np.ndarray) -> None:
    ranges = np.stack([np.full(16, -1), np.full(16, 1)]).astype(np.float32)
    for kind in ("int8", "uint8"):
        np.testing.assert_array_equal(quantized(vectors, kind, ranges), expected(vectors, kind, ranges))
    for kind in ("binary", "ubinary"):
        bits, wanted = quantized(vectors, kind, None), expected(vectors, kind, None)
        np.testing.assert_array_equal(bits.view(np.uint8), wanted.view(np.uint8))


def test_values_beyond_their_range_are_cut_to_it() -> None:
    ranges = np.array([[-1.0], [1.0]], np.float32)
    vectors = np.array([[-5], [-1], [5]], np.float32)
    assert quantized(vectors, "int8", ranges).ravel().tolist() == [-128, -128, 127]
    assert quantized(vectors, "uint8", ranges).ravel().tolist() == [0, 0, 255]


@pytest.mark.parametrize("kind", ["int8", "uint8", "binary", "ubinary"])
def test_an_embedder_returns_them_however_it_is_called(folder: Path, plain: isorun.Embedder, kind: str) -> None:
    vectors = plain.embed(TEXTS)
    ranges = np.stack([vectors.min(0) - 1, vectors.max(0) + 1]) if kind in ("int8", "uint8") else None
    wanted = quantized(vectors, kind, ranges)
    with isorun.Embedder(folder, **OPTIONS, quantize=kind, ranges=ranges) as embedder:
        assert embedder.dimension == plain.dimension
        for result in (
            embedder.embed(TEXTS),
            asyncio.run(embedder.aembed(TEXTS)),
            np.stack(list(embedder.embed_iter(TEXTS))),
        ):
            assert result.dtype == wanted.dtype
            np.testing.assert_array_equal(result, wanted)


def test_the_identity_names_the_type_and_the_ranges(folder: Path, plain: isorun.Embedder) -> None:
    ranges = np.stack([np.full(plain.dimension, -2.0), np.full(plain.dimension, 2.0)])
    records: list[dict[str, Any]] = []
    of_bytes = [{"quantize": "int8", "ranges": factor * ranges} for factor in (1, 2)]
    for options in ({}, {"quantize": "binary"}, *of_bytes):
        with isorun.Embedder(folder, **OPTIONS, **options) as embedder:
            records.append(embedder.vector_record())
            assert embedder.compatible_with(records[-1]).kind == "same"
            assert not any(embedder.compatible_with(record) for record in records[:-1])
    assert [record["stored"].partition(" ")[0] for record in records] == ["", "binary", "int8", "int8"]
    assert len({record["probe"] for record in records}) == len(records)  # as they are stored


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int7"}, "int8"),
        ({"quantize": "int8"}, "needs ranges"),
        ({"quantize": "binary", "ranges": [[0], [1]]}, "no effect"),
        ({"ranges": [[0], [1]]}, "no effect"),
        ({"quantize": "int8", "ranges": [[0], [1]]}, r"shape \(2, 8\), got \(2, 1\)"),
        ({"quantize": "int8", "ranges": np.zeros((2, 8))}, "below"),
        ({"quantize": "int8", "ranges": [[0] * 8, [np.nan] * 8]}, "finite"),
        ({"quantize": "binary", "truncate_dim": 4}, "multiple of 8"),
    ],
)
def test_invalid_arguments_are_rejected(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        isorun.Embedder(folder, **OPTIONS, **options)


def test_bits_are_cut_by_whole_bytes(folder: Path) -> None:
    with isorun.Embedder(folder, **OPTIONS, quantize="ubinary") as embedder:
        with pytest.raises(InvalidArgument, match="multiple of 8"):
            embedder.embed(TEXTS, truncate_dim=3)
        assert embedder.embed(TEXTS, truncate_dim=8).shape == (len(TEXTS), 1)
