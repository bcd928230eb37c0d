"""What the encoder computes is tested in test_checkpoint.py; here, how it asks for its weights."""

import numpy as np
import pytest

import tiny
from isorun.graph.builders import encoder, encoder_config
from isorun.graph.io import files


class Watched:
    """Weights that note what is asked of them."""

    def __init__(self) -> None:
        self.tensors = tiny.weights()
        self.checked: list[str] = []
        self.read_: list[str] = []

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        assert self.tensors[name].shape == shape
        self.checked.append(name)

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        assert self.tensors[name].shape == shape
        self.read_.append(name)
        return self.tensors[name]


@pytest.fixture
def config():
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return encoder_config.EncoderConfig(
        **{name: tiny.CONFIG[name] for name in names}, max_position_embeddings=tiny.POSITIONS
    )


def test_every_tensor_is_checked_before_any_is_read_and_read_once(config, tmp_path):
    weights = Watched()
    model = encoder.encoder(config, weights, "tiny")
    assert sorted(weights.checked) == sorted(weights.tensors)
    assert weights.read_ == []
    files.write(model, tmp_path / "model.onnx", beside_above=0)
    assert sorted(weights.read_) == sorted(weights.tensors)
