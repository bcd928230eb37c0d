"""Presets of BERT and encoders after it with seeded random weights, for benchmarks that need no trained model.

Activations stay in the range of a trained model: dense layers preserve variance, and attention scores vary enough for
attention to prefer some keys.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.errors import InvalidModel, did_you_mean
from isorun.models import encoder_settings
from isorun.system.cache import Cache, versioned

if TYPE_CHECKING:
    import onnx_ir as ir

_ENTRY_MODEL = "model.onnx"
_BASE = {"vocab_size": 30522, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_LARGE = {"vocab_size": 30522, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
_SIZES: dict[str, dict[str, Any]] = {
    "bert-3l": {**_BASE, "num_hidden_layers": 3},
    "bert-6l": {**_BASE, "num_hidden_layers": 6},
    "bert-base": {**_BASE, "num_hidden_layers": 12},
    "bert-large": {**_LARGE, "num_hidden_layers": 24},
    "modernbert-base": {
        **{"model_type": "modernbert", "vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22},
        **{"num_attention_heads": 12, "intermediate_size": 1152},
    },
    "embeddinggemma-300m": {
        **{"model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 768, "num_hidden_layers": 24},
        **{"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 1152},
        **{"query_pre_attn_scalar": 256, "sliding_window": 512, "use_bidirectional_attention": True},
    },
    "deberta-v3-small": {
        **{"vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12},
        **{"intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 0, "layer_norm_eps": 1e-7},
        **{"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256, "share_att_key": True},
        **{"norm_rel_ebd": "layer_norm", "position_biased_input": False},
    },
}

NAMES = tuple(_SIZES)


def sizes(name: str) -> dict[str, Any]:
    """A preset's sizes, by their names in ``config.json``.

    Raises:
        InvalidModel: there is no preset of that name.
    """
    if name not in _SIZES:
        raise InvalidModel(f"Unknown preset {name!r}{did_you_mean(name, _SIZES)}")
    return dict(_SIZES[name])


def write(name: str, seed: int, output: Path) -> None:
    """Write a preset's fused graph to an ONNX file, which depends on the name and seed only.

    Raises:
        InvalidModel: there is no preset of that name.
    """
    from isorun.graph.io import files

    files.write(graph(sizes(name), seed, name), output)


def graph(settings: Mapping[str, Any], seed: int, name: str) -> ir.Model:
    """The fused graph of an encoder with random weights.

    Args:
        settings: its sizes by their names in ``config.json``; one with rotary positions has a ``model_type``, a
            DeBERTa has ``relative_attention``, and any other is a BERT.
        seed: of the weights, 0 or more.
        name: the graph's name.
    """
    from isorun.graph.builders import encoder, encoder_config

    if seed < 0:
        raise InvalidModel(f"The seed must be 0 or more, got {seed}")
    kind = "deberta-v2" if "relative_attention" in settings else settings.get("model_type")
    config = encoder_settings.read(kind, settings, InvalidModel) if kind else encoder_config.EncoderConfig(**settings)
    return encoder.encoder(config, SeededWeights(seed), name)


def build(name: str, seed: int, cache: Cache) -> Path:
    """The ONNX file of a preset, from the cache if it was written before."""

    def make(folder: Path) -> dict[str, Any]:
        from isorun.graph.io import shared

        shared.write(graph(sizes(name), seed, name), folder / _ENTRY_MODEL)
        return {}

    key = versioned(f"{name}-{seed}", "presets", "builders")
    return cache.get_or_make("presets", key, make, part=_ENTRY_MODEL).folder / _ENTRY_MODEL


class SeededWeights:
    """Weights by name: each tensor depends on the seed and its name only."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Accept every name and shape."""

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Normally distributed weights, float32, with a standard deviation by name."""
        random = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        mean, deviation = _distribution(name, shape)
        values = random.standard_normal(shape, dtype=np.float32)
        values *= np.float32(deviation)
        values += np.float32(mean)
        return values


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    if name.endswith("LayerNorm.weight") or (len(shape) == 1 and name.endswith("norm.weight")):
        return (0.0 if "layernorm" in name or name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0), 0.1
    if name.endswith(".bias"):
        return 0.0, 0.05
    if "embed" in name:
        return 0.0, 1.0 if "word" in name or "tok_" in name else 0.3
    gain = 1.2 if name.endswith(("query.weight", "key.weight")) else 1.0
    return 0.0, gain / float(np.sqrt(shape[1]))
