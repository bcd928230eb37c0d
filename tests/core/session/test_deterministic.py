"""``Session(deterministic=True)``: the same bits for a row in any batch."""

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

BACKENDS = ("ort-cpu", "openvino")
ROWS, LENGTH = 12, 24


def feeds() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    lengths = random.integers(1, LENGTH + 1, ROWS)
    return {
        "input_ids": random.integers(0, 50, (ROWS, LENGTH)),
        "attention_mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.int64),
        "token_type_ids": np.zeros((ROWS, LENGTH), np.int64),
    }


@pytest.fixture(
    scope="module",
    params=[(backend, precision) for backend in BACKENDS for precision in ("fp32", "int8")],
    ids="-".join,
)
def session(request: pytest.FixtureRequest, bert: Path) -> Iterator[isorun.Session]:
    backend, precision = request.param
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # a few random tokens
        opened = isorun.Session(bert, backend, precision=precision, deterministic=True)
    with opened:
        yield opened


@given(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True), st.integers(0, 5))
@settings(deadline=None, max_examples=25)
def test_a_row_is_the_same_beside_any_others(session: isorun.Session, rows: list[int], cut: int) -> None:
    whole, mask = session.run(None, feeds()), feeds()["attention_mask"]
    width = max(int(mask[rows].sum(axis=1).max()), LENGTH - cut)
    part = session.run(None, {name: array[rows, :width] for name, array in feeds().items()})
    for spec, output, expected in zip(session.get_outputs(), part, whole, strict=True):
        by_token = spec.name in (session.model_info.token_outputs or ())
        np.testing.assert_array_equal(output, expected[rows][:, :width] if by_token else expected[rows])


@pytest.mark.parametrize(("backend", "note"), [("ort-cpu", "padding"), ("openvino", "rows")])
def test_other_threads_return_the_same(backend: str, note: str, bert: Path) -> None:
    results = []
    for threads in (1, 2):
        with isorun.Session(bert, backend, threads=threads, deterministic=True) as session:
            results.append(session.run(None, feeds()))
            details = session.provenance.details
            assert details[note] == "one at a time" if note == "rows" else details[note]["removed"] == "always"
    for single, double in zip(*results, strict=True):
        np.testing.assert_array_equal(single, double)


def test_a_backend_that_cannot_is_refused(bert: Path) -> None:
    with pytest.raises(BackendUnavailable, match="deterministic") as caught:
        isorun.Session(bert, "reference", deterministic=True)
    assert caught.value.backend == "reference"
    with isorun.Session(bert, ["reference", "ort-cpu"], deterministic=True) as session:
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


def test_rows_that_run_one_at_a_time_are_those_of_the_model(tmp_path: Path) -> None:
    """With windows, too; token outputs are zero at the padding that is left out, and a fully masked row keeps it."""
    path = tmp_path / "model.onnx"
    path.write_bytes(exports.content("modernbert-torchscript17-sdpa"))
    tokens = {name: feeds()[name] for name in ("input_ids", "attention_mask")}
    tokens["attention_mask"][0] = 0
    tokens["attention_mask"][1, :3] = 0
    with isorun.Session(path, "openvino", deterministic=True) as single, isorun.Session(path, "ort-cpu") as whole:
        for by_row, by_batch in zip(single.run(None, tokens), whole.run(None, tokens), strict=True):
            real = tokens["attention_mask"] != 0
            np.testing.assert_allclose(by_row[real], by_batch[real], atol=1e-4)
            alone = single.run(None, {name: array[1:2] for name, array in tokens.items()})[0]
            np.testing.assert_array_equal(alone[0][real[1]], by_row[1][real[1]])


def test_masks_of_other_values_are_rejected(session: isorun.Session) -> None:
    """They run the model as given, of which nothing is known."""
    with pytest.raises(InvalidFeeds, match="attention_mask"):
        session.run(None, {**feeds(), "attention_mask": np.full((ROWS, LENGTH), 2)})


def test_a_mask_of_another_number_of_rows_is_rejected() -> None:
    """So would it."""
    model = exports.proto("bert-tf2onnx17")
    tokens = exports.given("bert-tf2onnx17")
    name = "attention_mask"
    spec = next(spec for spec in model.graph.input if spec.name == name)
    spec.type.tensor_type.shape.dim[0].dim_param = "masks"
    with isorun.Session(model, "ort-cpu", deterministic=True) as opened:
        assert len(opened.run(None, tokens)[0]) == len(tokens[name])
        with pytest.raises(InvalidFeeds, match="deterministic"):
            opened.run(None, {**tokens, name: tokens[name][:1]})


@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors_are_the_same_in_any_order(backend: str, tmp_path: Path) -> None:
    folder = sentence_models.write_sentence_model(tmp_path)
    texts = [" ".join("abc"[(index + place) % 3] for place in range(1 + index % 7)) for index in range(40)]
    with isorun.Embedder(folder, backend=backend, deterministic=True) as embedder:
        whole = embedder.embed(texts)
        backwards = embedder.embed(texts[::-1])[::-1]
        alone = np.concatenate([embedder.embed([text]) for text in texts])
    np.testing.assert_array_equal(backwards, whole)
    np.testing.assert_array_equal(alone, whole)
