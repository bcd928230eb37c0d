"""A decoder's first pass: with an empty key-value cache it is an encoder, which is fused."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import archives
import exports
import isorun
from isorun.errors import InvalidFeeds
from isorun.graph import pipeline

OUTPUTS = {"optimum": "logits", "genai": "hidden_states"}
HEADS, WIDTH = 1, 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archives.unpack("decoders", tmp_path_factory.mktemp("decoders"))


def first_feeds(path: Path, length: int = 12) -> dict[str, np.ndarray]:
    """Rows of every kind of mask that ONNX Runtime's kernel accepts, with an empty cache."""
    fed = {name: array[:4] % 32 for name, array in exports.feeds(["input_ids", "attention_mask"], length).items()}
    fed["position_ids"] = np.tile(np.arange(length), (4, 1))
    empty = np.zeros((4, HEADS, 0, WIDTH), np.float32)
    session = onnxruntime.InferenceSession(path)
    return {value.name: fed.get(value.name, empty) for value in session.get_inputs()}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino", "reference"])
@pytest.mark.parametrize("exporter", OUTPUTS)
def test_runs_without_a_cache(exporter: str, backend: str, folder: Path) -> None:
    path, output = folder / exporter / "model.onnx", OUTPUTS[exporter]
    fed = first_feeds(path)
    expected = onnxruntime.InferenceSession(path).run([output], fed)[0]
    with isorun.Session(path, backend, outputs=[output]) as session:
        names = [value.name for value in session.get_inputs()]
        assert names == [name for name in fed if not name.startswith("past")]
        (hidden,) = session.run(None, {name: fed[name] for name in names})
    real = fed["attention_mask"] == 1
    np.testing.assert_allclose(hidden[real], expected[real], rtol=0, atol=2e-5)


@pytest.mark.parametrize("exporter", OUTPUTS)
def test_is_fused(exporter: str, folder: Path) -> None:
    read = pipeline.read(folder / exporter / "model.onnx", [OUTPUTS[exporter]])
    assert read.fused_here
    assert not read.report.refusals


@pytest.mark.parametrize("exporter", OUTPUTS)
def test_keeps_the_cache_of_who_asks_for_it(exporter: str, folder: Path) -> None:
    """The model runs as given, from any state."""
    path = folder / exporter / "model.onnx"
    fed = first_feeds(path, 1)
    fed |= {name: np.full((4, HEADS, 3, WIDTH), 0.1, np.float32) for name in fed if name.startswith("past")}
    fed["attention_mask"] = np.ones((4, 4), np.int64)
    names = [OUTPUTS[exporter], "present.1.value"]
    with isorun.Session(path, "ort-cpu", outputs=names) as session:
        for expected, result in zip(
            onnxruntime.InferenceSession(path).run(names, fed), session.run(None, fed), strict=True
        ):
            np.testing.assert_array_equal(result, expected)
    with (
        isorun.Session(path, "ort-cpu", outputs=names[:1]) as session,
        pytest.raises(InvalidFeeds, match="no input 'past_key_values"),
    ):
        session.run(None, fed)


@pytest.mark.parametrize("operator", ["Neg", "Shape"])
def test_keeps_a_cache_that_is_read_otherwise(operator: str) -> None:
    kind = "int64[n]" if operator == "Shape" else "float[b, 1, p, 4]"
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        g (int64[b, s] input_ids, float[b, 1, p, 4] past_key_values_0_key) => ({kind} y)
        {{ y = {operator} (past_key_values_0_key) }}
    """)
    with isorun.Session(proto, "ort-cpu", outputs=["y"]) as session:
        assert [value.name for value in session.get_inputs()] == ["input_ids", "past_key_values_0_key"]


@pytest.mark.parametrize("attributes", ["", "<start = 2, end = 3>"])
def test_counts_no_earlier_tokens(attributes: str) -> None:
    time = "time = Identity (shape)" if attributes else "time = Gather (shape, two)"
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        g (int64[b, s] input_ids, float[b, 1, p, 4] past_key_values_0_key)
            => (int64[b, s] y) <int64[1] two = {{2}}>
        {{ shape = Shape {attributes} (past_key_values_0_key) {time} y = Add (input_ids, time) }}
    """)
    ids = np.full((2, 3), 10)
    with isorun.Session(proto, "ort-cpu", outputs=["y"]) as session:
        assert session.run(None, {"input_ids": ids})[0].tolist() == [[10, 10, 10]] * 2
