"""A model of the largest size in use, with more weights than one protobuf message holds."""

from pathlib import Path

import numpy as np
import pytest

import exports
from isorun import Session
from isorun.graph import pipeline
from isorun.graph.builders import encoder, encoder_config
from isorun.graph.io import files
from isorun.graph.ops import lower
from isorun.models import presets

SIZES = encoder_config.EncoderConfig(
    vocab_size=250_002,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    max_position_embeddings=514,
)
INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


@pytest.mark.long
@pytest.mark.parametrize("padding", ["keep", "remove"])
@pytest.mark.parametrize("backend", ["ort-cpu", "openvino"])
def test_a_model_above_two_gigabytes_is_fused_and_run(backend: str, padding: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain.onnx"
    files.write(
        lower.lower(encoder.encoder(SIZES, presets.SeededWeights(0), "large"), "primitive"),
        plain,
    )
    assert sum((tmp_path / name).stat().st_size for name in files.external_files(files.read_proto(plain))) > 2**31
    assert pipeline.fuse(files.read(plain)).complete
    feeds = exports.feeds(INPUTS, length=16)
    expected = exports.run(plain, feeds, ["last_hidden_state", "pooler_output"])
    with Session(plain, backend=backend, padding=padding, cache_dir=tmp_path / "cache") as session:
        hidden, pooled = session.run(["last_hidden_state", "pooler_output"], feeds)
        assert session.provenance.fused["SelfAttention"] == SIZES.num_hidden_layers
    attended = feeds["attention_mask"] != 0
    np.testing.assert_allclose(hidden[attended], expected[0][attended], rtol=0, atol=1e-4)
    np.testing.assert_allclose(pooled, expected[1], rtol=0, atol=1e-4)
