"""A BERT built without a checkpoint, smaller than :mod:`tiny`'s: 2 layers, 16 wide, 2 heads."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from isorun.graph.builders import encoder, encoder_config
from isorun.graph.io import files

VOCABULARY, WIDTH, POSITIONS = 60, 16, 64


class Weights:
    """Random, and large enough for every position to matter to every other."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """There is a tensor for every name and shape."""

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        random = np.random.default_rng(sum(name.encode()))
        return (random.standard_normal(shape) * 0.4 + name.endswith("LayerNorm.weight")).astype(np.float32)


def build(**settings: Any) -> ir.Model:
    """The fused graph; settings of :class:`isorun.graph.builders.encoder_config.EncoderConfig` may differ."""
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": POSITIONS,
        **settings,
    }
    return encoder.encoder(encoder_config.EncoderConfig(**config), Weights(), "tiny")


def write(path: Path, **settings: Any) -> Path:
    """The same as a file."""
    files.write(build(**settings), path)
    return path


def feeds(mask: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    """Random ids and types under a mask, of one row or of several."""
    random = np.random.default_rng([*mask.shape, seed])
    return {
        "input_ids": random.integers(0, VOCABULARY, mask.shape),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, mask.shape),
    }
