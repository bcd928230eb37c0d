"""A BERT small enough for every test: 2 layers, 32 wide, 4 heads, 99 words, 40 positions, seeded weights.

Checkpoints are written by hand, byte by byte: what the code under test reads with the safetensors library
is not what that library wrote.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

VOCABULARY, WIDTH, POSITIONS, LABELS = 99, 32, 40, 3

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}

_SAFETENSORS_NAMES = {
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.int64): "I64",
    np.dtype(np.int8): "I8",
}

Weights = dict[str, np.ndarray]


def weights(config: Mapping[str, Any] = CONFIG, *, seed: int = 0, pooler: bool = True, head: str = "") -> Weights:
    """Every tensor of a checkpoint by Hugging Face's names, float32. Dense weights are (out, in), as PyTorch has them.

    Nothing is 0 or 1, so that a weight that is left out or mixed up with another shows.
    """
    random = np.random.default_rng(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]

    def normal(*shape: int, mean: float = 0.0, deviation: float = 0.2) -> np.ndarray:
        return (mean + deviation * random.standard_normal(shape)).astype(np.float32)

    tensors: Weights = {}

    def dense(name: str, out: int, into: int) -> None:
        tensors[f"{name}.weight"] = normal(out, into, deviation=1.5 / np.sqrt(into))
        tensors[f"{name}.bias"] = normal(out)

    def norm(name: str) -> None:
        tensors[f"{name}.LayerNorm.weight"] = normal(width, mean=1.0)
        tensors[f"{name}.LayerNorm.bias"] = normal(width)

    for table, rows in (
        ("word", "vocab_size"),
        ("position", "max_position_embeddings"),
        ("token_type", "type_vocab_size"),
    ):
        tensors[f"embeddings.{table}_embeddings.weight"] = normal(config[rows], width, deviation=1.0)
    norm("embeddings")
    for index in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        for part in ("query", "key", "value"):
            dense(f"{layer}.attention.self.{part}", width, width)
        dense(f"{layer}.attention.output.dense", width, width)
        norm(f"{layer}.attention.output")
        dense(f"{layer}.intermediate.dense", inner, width)
        dense(f"{layer}.output.dense", width, inner)
        norm(f"{layer}.output")
    if pooler:
        dense("pooler.dense", width, width)
    if head in ("sequence", "token"):
        dense("classifier", LABELS, width)
    if head == "question":
        dense("qa_outputs", 2, width)
    return tensors


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, np.ndarray] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    shards: int = 1,
    **settings: Any,
) -> Path:
    """A checkpoint's folder; ``settings`` are put over the config, ``None`` takes a key away."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {**(CONFIG if config is None else config), **settings}
    merged = {key: value for key, value in merged.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(merged))
    tensors = weights() if tensors is None else tensors
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    where = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        write_safetensors(folder / name, part)
        where.update(dict.fromkeys(part, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def edit(path: Path, **fields: Any) -> Path:
    """Change fields of the JSON object in a file; ``...`` takes one away."""
    merged = {**json.loads(path.read_text(encoding="utf-8")), **fields}
    path.write_text(json.dumps({key: value for key, value in merged.items() if value is not ...}), encoding="utf-8")
    return path


def changed(folder: Path, **settings: Any) -> Path:
    """The folder of a checkpoint, with other settings in its ``config.json``."""
    return edit(folder / "config.json", **settings).parent


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """The format: the header's length (little-endian, 8 bytes), the header as JSON, the tensors end to end."""
    header, content = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [len(content), len(content) + len(raw)],
        }
        content += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)


SHAPES = ((1, 1), (1, 7), (2, 5), (3, 9), (1, POSITIONS), (4, 16))
"""Batches and lengths."""

MASKS = ("none", "right", "left", "holes", "empty-row")


def mask(kind: str, batch: int, length: int) -> np.ndarray:
    """One of the five kinds of attention mask, (batch, length) int64 of 0 and 1.

    ``none`` has no padding; ``right`` and ``left`` pad every row but the first on that side; ``holes`` leaves
    out tokens amid others; ``empty-row`` is right padding with nothing at all left of the last row.
    """
    values = np.ones((batch, length), np.int64)
    places = np.arange(length)
    for row in range(batch):
        real = max(1, length - 2 * row)
        if kind in ("right", "empty-row"):
            values[row] = places < real
        elif kind == "left":
            values[row] = places >= length - real
        elif kind == "holes":
            values[row] = (places + row) % 3 != 1
    if kind == "empty-row":
        values[-1] = 0
    return values


def feeds(
    batch: int = 2, length: int = 7, *, kind: str = "right", seed: int = 0, types: bool = True
) -> dict[str, np.ndarray]:
    """Feeds of a BERT: random ids and types under one of the five kinds of mask."""
    random = np.random.default_rng([seed, batch, length])
    inputs = {
        "input_ids": random.integers(0, VOCABULARY, (batch, length)),
        "attention_mask": mask(kind, batch, length),
        "token_type_ids": random.integers(0, 2, (batch, length)),
    }
    return inputs if types else {**inputs, "token_type_ids": np.zeros((batch, length), np.int64)}
