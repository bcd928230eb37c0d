"""Vectors of texts by exports of decoders: with positions, a key-value cache, or ONNX Runtime's operators."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import archives
from isorun import Embedder
from isorun.errors import InvalidFeeds, InvalidModel

TEXTS = ["w1 w2 w3 w4 w5", "w7", "w3 w3 w9"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archives.unpack("decoders", tmp_path_factory.mktemp("decoders"))


def alone(path: Path, ids: list[int]) -> np.ndarray:
    """The hidden state of a text's last token, as ONNX Runtime computes it for the text alone."""
    fed = {
        "input_ids": np.array([ids]),
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "position_ids": np.arange(len(ids))[None],
    }
    session = onnxruntime.InferenceSession(path)
    names = [value.name for value in session.get_inputs()]
    return session.run(["last_hidden_state"], {name: fed[name] for name in names})[0][0, -1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("exporter", ["optimum-features", "genai"])
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_embeds_texts(exporter: str, backend: str, folder: Path) -> None:
    features = folder / "optimum-features" / "model.onnx"
    with Embedder(folder / exporter / "model.onnx", backend=backend, pooling="lasttoken") as embedder:
        vectors = embedder.embed(TEXTS)
        ids = [embedder.tokenizer.encode([text])["input_ids"][0].tolist() for text in TEXTS]
    np.testing.assert_allclose(vectors, [alone(features, row) for row in ids], rtol=0, atol=2e-5)


def test_logits_are_no_vectors(folder: Path) -> None:
    with pytest.raises(InvalidModel, match="logits"):
        Embedder(folder / "optimum" / "model.onnx", pooling="lasttoken", backend="ort-cpu")


def test_positions_of_a_table_are_not_derived(folder: Path, tmp_path: Path) -> None:
    """RoBERTa's first token is at position 2, BERT's at 0."""
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        g (int64[b, s] input_ids, int64[b, s] attention_mask, int64[b, s] position_ids)
            => (float[b, s, 2] last_hidden_state) <float[8, 2] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}>
        { last_hidden_state = Gather (table, position_ids) }
    """)
    onnx.save(proto, tmp_path / "model.onnx")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / "genai" / name).read_bytes())
    embedder = Embedder(tmp_path / "model.onnx", pooling="mean", backend="ort-cpu")
    with embedder, pytest.raises(InvalidFeeds, match="position_ids"):
        embedder.embed(TEXTS)
