"""``Session(deterministic=True)``: the same bits for a row in any batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import exports
import isorun
import sentence_models
from isorun.compilation.calibration import CalibrationWarning
from isorun.errors import BackendUnavailable, InvalidFeeds, UnsupportedModel

ROWS, LENGTH = 12, 24


def feeds() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    lengths = random.integers(1, LENGTH + 1, ROWS)
    return {
        "input_ids": random.integers(0, 50, (ROWS, LENGTH)),
        "attention_mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.int64),
        "token_type_ids": np.zeros((ROWS, LENGTH), np.int64),
    }


@pytest.fixture(scope="module", params=["fp32", "int8"])
def session(request: pytest.FixtureRequest, bert: Path) -> Iterator[isorun.Session]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # a few random tokens
        opened = isorun.Session(bert, "ort-cpu", precision=request.param, deterministic=True)
    with opened:
        yield opened


@given(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True), st.integers(0, 5))
@settings(deadline=None, max_examples=25)
def test_a_row_is_the_same_beside_any_others(session: isorun.Session, rows: list[int], cut: int) -> None:
    whole, mask = session.run(None, feeds()), feeds()["attention_mask"]
    width = max(int(mask[rows].sum(axis=1).max()), LENGTH - cut)
    part = session.run(None, {name: array[rows, :width] for name, array in feeds().items()})
    for spec, one, other in zip(session.get_outputs(), part, whole, strict=True):
        by_token = spec.name in (session.model_info.token_outputs or ())
        np.testing.assert_array_equal(one, other[rows][:, :width] if by_token else other[rows])


def test_other_threads_return_the_same(bert: Path) -> None:
    results = []
    for threads in (1, 2):
        with isorun.Session(bert, "ort-cpu", threads=threads, deterministic=True) as session:
            results.append(session.run(None, feeds()))
            assert session.provenance.details["padding"]["removed"] == "always"
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_backend_that_cannot_is_refused(bert: Path) -> None:
    with pytest.raises(BackendUnavailable, match="deterministic") as caught:
        isorun.Session(bert, "openvino", deterministic=True)
    assert caught.value.backend == "openvino"
    with isorun.Session(bert, ["openvino", "ort-cpu"], deterministic=True) as session:
        assert session.provenance.backend == "ort-cpu"
    with pytest.raises(TypeError, match="deterministic"):
        isorun.Session(bert, "ort-cpu", deterministic="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("label", ["modernbert-torchscript17-sdpa", None])
def test_a_model_of_which_it_is_not_known_is_refused(label: str | None, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    if label is None:
        import onnx.parser

        text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }'
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    else:
        path.write_bytes(exports.content(label))
    with pytest.raises(UnsupportedModel, match="deterministic"):
        isorun.Session(path, "ort-cpu", deterministic=True)


def test_masks_of_other_values_are_rejected(session: isorun.Session) -> None:
    """They run the model as given, of which nothing is known."""
    with pytest.raises(InvalidFeeds, match="attention_mask"):
        session.run(None, {**feeds(), "attention_mask": np.full((ROWS, LENGTH), 2)})


def test_vectors_are_the_same_in_any_order(tmp_path: Path) -> None:
    folder = sentence_models.write_sentence_model(tmp_path)
    texts = [" ".join("abc"[(index + place) % 3] for place in range(1 + index % 7)) for index in range(40)]
    with isorun.Embedder(folder, backend="ort-cpu", deterministic=True) as embedder:
        whole = embedder.embed(texts)
        backwards = embedder.embed(texts[::-1])[::-1]
        alone = np.concatenate([embedder.embed([text]) for text in texts])
    np.testing.assert_array_equal(backwards, whole)
    np.testing.assert_array_equal(alone, whole)
