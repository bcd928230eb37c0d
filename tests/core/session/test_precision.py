"""What a session makes of ``precision``: honoured, proved, or refused with what the runtime would have done."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import exports
import tiny
from isorun import BackendUnavailable, Session
from isorun.models.pooling import cosine_matrix, mean_pool
from isorun.models.tokenizer import Tokenizer
from isorun.system.cache import Cache
from isorun.system.hardware import cpu_flags

SENTENCES = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Prices fell in March.",
    "Yes.",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("padding", ["keep", "remove"])
@pytest.mark.parametrize("kind", tiny.MASKS)
def test_fp16_on_the_reference(bert: Path, kind: str, padding: str) -> None:
    feeds = tiny.feeds(kind=kind)
    with (
        Session(bert, "reference", padding=padding) as whole,
        Session(bert, "reference", precision="fp16", padding=padding) as half,
    ):
        expected, got = whole.run(None, feeds), half.run(None, feeds)
        assert half.provenance.precision == "fp16"
        assert half.provenance.details["graph"]["fp16"]["kept"] == []
        assert half.get_inputs() == whole.get_inputs()
        assert half.get_outputs() == whole.get_outputs()
    assert [array.dtype for array in got] == [np.float32, np.float32]
    assert 1e-5 < exports.difference(expected, got) < 0.03


@pytest.mark.long
def test_minilm_in_fp16_ranks_sentences_alike(minilm_model: Path) -> None:
    """Under all five kinds of mask: as the sentences are, on the left, with holes, and with nothing left."""
    feeds = Tokenizer.beside(minilm_model).encode(SENTENCES)
    mask = feeds["attention_mask"]
    mask[2] = mask[2, ::-1]
    feeds["input_ids"][2] = feeds["input_ids"][2, ::-1]
    mask[3, 2:4] = 0
    mask[4] = 0
    vectors = []
    for backend, precision in (("ort-cpu", "fp32"), ("reference", "fp16")):
        with Session(minilm_model, backend, precision=precision, padding="keep") as session:
            (hidden,) = session.run(["last_hidden_state"], feeds)
        vectors.append(mean_pool(hidden, np.where(mask.any(axis=1, keepdims=True), mask, 1)))
    whole, half = (vector / np.linalg.norm(vector, axis=1, keepdims=True) for vector in vectors)
    assert (whole * half).sum(axis=1).min() >= 0.9999
    nearest = [np.argsort(-cosine_matrix(vector[:4]), axis=1) for vector in (whole, half)]
    np.testing.assert_array_equal(*nearest)


@pytest.mark.long
@pytest.mark.parametrize(("precision", "least"), [("bf16", 0.9999), ("int8", 0.985)])
def test_minilm_in_other_precisions_ranks_sentences_alike(
    minilm_model: Path, minilm_cache: Cache, precision: str, least: float
) -> None:
    if precision == "bf16" and not cpu_flags() & {"avx512_bf16", "amx_bf16"}:
        pytest.skip("this processor has no bf16 arithmetic")
    feeds = Tokenizer.beside(minilm_model).encode(SENTENCES)
    vectors = []
    for name in ("fp32", precision):
        with Session(minilm_model, "openvino", precision=name, cache_dir=minilm_cache.root) as session:
            (hidden,) = session.run(["last_hidden_state"], feeds)
        vectors.append(mean_pool(hidden, feeds["attention_mask"]))
    whole, narrow = (vector / np.linalg.norm(vector, axis=1, keepdims=True) for vector in vectors)
    assert (whole * narrow).sum(axis=1).min() >= least
    cosines, order = cosine_matrix(whole), np.argsort(-cosine_matrix(narrow), axis=1)
    np.testing.assert_array_equal(order[:, :2], np.argsort(-cosines, axis=1)[:, :2])  # itself, and the nearest
    assert np.diff(np.take_along_axis(cosines, order, axis=1), axis=1).max() < 0.02  # others but for near ties


@pytest.mark.parametrize(
    ("backend", "precision", "instead"),
    [
        ("ort-cpu", "fp16", "would compute in fp32"),
        pytest.param(
            *("ort-cpu", "bf16", "Arm processors with bf16 arithmetic only"),
            marks=pytest.mark.skipif("bf16" in cpu_flags(), reason="this processor is one of them"),
        ),
    ],
)
def test_an_unsupported_precision_names_what_the_runtime_would_do(
    bert: Path, backend: str, precision: str, instead: str
) -> None:
    with pytest.raises(BackendUnavailable, match=instead) as caught:
        Session(bert, backend, precision=precision)
    assert "supported: fp32" in caught.value.reason


def test_the_graph_in_another_precision_is_kept_apart_in_the_cache(bert: Path, tmp_path: Path) -> None:
    notes = []
    for precision in ("fp32", "fp16", "fp16", "fp32"):
        with Session(bert, "reference", precision=precision, cache_dir=tmp_path) as session:
            notes.append((session.provenance.cache, session.provenance.precision, session.provenance.details))
    assert [cache for cache, *_ in notes] == ["made", "made", "found", "found"]
    assert notes[1][1:] == notes[2][1:]
    assert "graph" not in notes[3][2]


def half_model(inputs: str = "float16") -> onnx.ModelProto:
    """A dense layer whose weights are fp16 already."""
    text = f"""<ir_version: 10, opset_import: ["" : 17]> g ({inputs}[N,4] x) => (float16[N,4] y)
        {{ h = {"Identity (x)" if inputs == "float16" else "Cast <to = 10> (x)"} m = MatMul (h, w) y = Relu (m) }}"""
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float16)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


class TestAModelThatIsFp16Already:
    x = np.array([[1, 2, 3, 4], [0.1, -0.2, 0.3, -0.4]], np.float16)

    @property
    def expected(self) -> np.ndarray:
        weights = numpy_helper.to_array(half_model().graph.initializer[0])
        return np.maximum(self.x.astype(np.float64) @ weights.astype(np.float64), 0)

    @pytest.mark.parametrize(
        ("backend", "precision"),
        [("ort-cpu", "fp32"), ("openvino", "fp32"), ("openvino", "bf16"), ("reference", "fp16"), ("reference", "fp64")],
    )
    def test_takes_and_gives_fp16(self, backend: str, precision: str) -> None:
        if precision == "bf16" and not cpu_flags() & {"avx512_bf16", "amx_bf16"}:
            pytest.skip(f"this processor has no {precision} arithmetic")
        with Session(half_model(), backend, precision=precision) as session:
            assert [spec.type for spec in (*session.get_inputs(), *session.get_outputs())] == ["tensor(float16)"] * 2
            (got,) = session.run(None, {"x": self.x})
            assert session.provenance.precision == precision
        assert got.dtype == (np.float64 if precision == "fp64" else np.float16)
        np.testing.assert_allclose(got, self.expected, atol=0.1 if precision == "bf16" else 5e-3)

    def test_is_not_run_in_fp16_under_the_name_of_fp32(self) -> None:
        with pytest.raises(BackendUnavailable, match="precision='fp16'"):
            Session(half_model(), "reference")

    def test_is_refused_fp32_feeds(self) -> None:
        with Session(half_model(), "ort-cpu") as session, pytest.raises(ValueError, match="float16"):
            session.run(None, {"x": self.x.astype(np.float32)})


class TestAModelThatIsQuantizedAlready:
    @pytest.fixture
    def model(self) -> onnx.ModelProto:
        text = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,4] x) => (float[N,4] y)
            <float s = {0.5}, int8 z = {0}, int8[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
            { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, s, z)
              y = MatMul (d, v) }"""
        return onnx.parser.parse_model(text)

    @pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
    def test_runs_as_it_came(self, model: onnx.ModelProto, backend: str) -> None:
        x = np.array([[1, -1, 0.5, 2]], np.float32)
        with Session(model, backend) as session:
            (got,) = session.run(None, {"x": x})
        np.testing.assert_allclose(got, x @ (np.arange(1, 17).reshape(4, 4) / 2), atol=1e-5)

    def test_is_not_written_in_fp16(self, model: onnx.ModelProto) -> None:
        with pytest.raises(Exception, match=r"already quantized.*Use precision='fp32'"):
            Session(model, "reference", precision="fp16")
