"""The models that the checks run: encoders and dense layers, from a single node to bert-base, with seeded weights.

:mod:`isorun_conformance.formulas` has those that compute something simple on inputs and outputs of many kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isorun.models import presets
from isorun.parity.samples import MASKS, random_feeds
from isorun.types import ModelInfo, TensorSpec

_WIDTH, _WIDE = 256, 1024
OPSET, IR_VERSION = 17, 8  # which every runtime has supported for years

_SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
_TINY = {**_SMALL, "vocab_size": 99, "max_position_embeddings": 512}
_ENCODERS: dict[str, dict[str, Any]] = {
    "bert-1x32": {**_TINY, "num_hidden_layers": 1},
    "bert-2x32": _TINY,
    # Token ids that neither 16 bits nor the mantissa of fp16 or bf16 can hold.
    "bert-vocabulary-70k": {**_TINY, "num_hidden_layers": 1, "vocab_size": 70_000},
    "bert-2x128": {**_TINY, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512},
    "bert-4x256": {**_TINY, "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 1024},
    # Rotary positions, pre-norm, gated GELU; a window of 2 tokens to either side in the second layer.
    "modernbert-2x32": {
        **{**_SMALL, "model_type": "modernbert", "vocab_size": 99, "norm_eps": 0.01},
        **{"layer_types": ["full_attention", "sliding_attention"], "local_attention": 4},
    },
    # RMS norms, of queries and keys too; grouped queries; scores scaled by 1/8 instead of 1/4.
    "gemma3-2x32": {
        **{**_SMALL, "model_type": "gemma3_text", "vocab_size": 99, "rms_norm_eps": 0.01, "head_dim": 16},
        **{"num_key_value_heads": 2, "query_pre_attn_scalar": 64, "use_bidirectional_attention": True},
        **{"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
    },
    # Disentangled attention over log buckets.
    "deberta-2x32": {
        **{**_TINY, "type_vocab_size": 0, "layer_norm_eps": 0.01, "relative_attention": True, "position_buckets": 8},
        **{"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm"},
        "position_biased_input": False,
    },
}
# Every epsilon above is large enough that a wrong one shows.

SIZES = ("one-node", "few-nodes", "wide-node", "bert-2x32", "bert-vocabulary-70k", "bert-2x128", "bert-4x256")
"""The models that take seconds, by size."""
LATER = ("modernbert-2x32", "gemma3-2x32", "deberta-2x32")
"""Encoders after BERT, with the operators and attributes that BERT does not use."""
BIG_SIZES = ("bert-3l", "bert-6l", "bert-base")
"""Those that take minutes."""

MASK_KINDS: Mapping[str, Callable[[int, int, np.random.Generator], np.ndarray]] = {
    **MASKS,
    "first-row-masked": lambda batch, sequence, random: _with_masked(slice(0, 1), batch, sequence, random),
    "every-other-row-masked": lambda batch, sequence, random: _with_masked(slice(1, None, 2), batch, sequence, random),
    "equal-counts": lambda batch, sequence, random: random.permuted(
        np.tile(np.arange(sequence) <= sequence // 2, (batch, 1)), axis=1
    ).astype(np.int64),
    "one-token": lambda batch, sequence, _: np.tile(np.arange(sequence) == sequence - 1, (batch, 1)).astype(np.int64),
}
"""The five kinds of mask, and some more that are unusual."""

SUM = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch] x, float[sequence] y) => (float[sequence] z) { z = Add (x, y) }"""
"""A model that fails in the runtime if its inputs, which pass validation, differ in size."""

BEST_THREE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, sequence, 8] x) => (float[batch, 3] best)
<float[8] gamma = {1, 1, 1, 1, 1, 1, 1, 1}, float[8] beta = {0, 0, 0, 0, 0, 0, 0, 0},
 float[8, 1] w = {0, 1, 2, 3, 4, 5, 6, 7}, int64[1] last = {-1}, int64[1] three = {3}>
{
  normalized = LayerNormalization <axis = -1> (x, gamma, beta)
  product = MatMul (normalized, w)
  scores = ReduceSum <keepdims = 0> (product, last)
  best, places = TopK <axis = 1> (scores, three)
}"""
"""A model that fails in the runtime if a sequence, which passes validation, is shorter than 3."""

UNKNOWN_OPERATOR = """<ir_version: 8, opset_import: ["" : 17, "nowhere" : 1]>
g (float[4] x) => (float[4] y) { y = nowhere.Frobnicate (x) }"""


def parsed(text: str) -> bytes:
    """A serialized model from ONNX's text format."""
    import onnx.parser

    content: bytes = onnx.parser.parse_model(text).SerializeToString()
    return content


def _with_masked(rows: slice, batch: int, sequence: int, random: np.random.Generator) -> np.ndarray:
    mask = MASKS["holes"](batch, sequence, random)
    mask[rows] = 0
    return mask


@dataclass(frozen=True)
class SampleModel(ABC):
    """A model, and feeds for it.

    Attributes:
        name: what reports call it.
        dynamic: whether its shapes are symbolic; otherwise ``batch`` and ``sequence`` are fixed.
        batch, sequence: the default sizes of feeds; a model without a sequence has 0.
    """

    name: str
    dynamic: bool = False
    batch: int = 4
    sequence: int = 0

    def path(self, folder: Path) -> Path:
        """The model's file in a folder, written on first use."""
        shapes = "dynamic" if self.dynamic else f"{self.batch}x{self.sequence}"
        path = folder / "models" / f"{self.name}-{shapes}.onnx"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.write(path)
        return path

    @abstractmethod
    def write(self, path: Path) -> None:
        """Write the model."""

    @abstractmethod
    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random feeds."""

    def unmasked(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random feeds without padding."""
        return self.feeds(seed)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Dense(SampleModel):
    """Products with dense weights: ``x`` (rows, 256) float32 to ``y`` (rows, 256).

    ``one-node`` is ``x @ w``, ``wide-node`` the same with 1024 columns; ``few-nodes`` is ``tanh(x @ w + b)``; ``heavy``
    is eight products and keeps a core busy for some milliseconds. Models with another ``seed`` differ in their weights
    only.
    """

    seed: int = 0

    def path(self, folder: Path) -> Path:
        return super().path(folder / str(self.seed))

    def write(self, path: Path) -> None:
        import onnx
        from onnx import numpy_helper

        random = np.random.default_rng(self.seed)
        products = 8 if self.name == "heavy" else 1
        width = self._width
        weights = [random.standard_normal((width, width), np.float32) / np.float32(16) for _ in range(products)]
        steps: list[tuple[str, str | None]] = [("MatMul", f"w{index}") for index in range(products)]
        initializers = [numpy_helper.from_array(weight, f"w{index}") for index, weight in enumerate(weights)]
        if self.name == "few-nodes":
            steps += [("Add", "b"), ("Tanh", None)]
            initializers.append(numpy_helper.from_array(random.standard_normal(width, np.float32), "b"))
        values = ["x", *(f"v{index}" for index in range(1, len(steps))), "y"]
        nodes = [
            onnx.helper.make_node(kind, [values[index], *([weight] if weight else [])], [values[index + 1]])
            for index, (kind, weight) in enumerate(steps)
        ]
        shape = ["rows" if self.dynamic else self.batch, width]
        x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy")
        graph = onnx.helper.make_graph(nodes, self.name, [x], [y], initializers)
        opsets = [onnx.helper.make_opsetid("", OPSET)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), path)

    def feeds(self, seed: int = 0, *, rows: int | None = None) -> dict[str, np.ndarray]:
        """``x``, standard normal."""
        return {"x": np.random.default_rng(seed).standard_normal((rows or self.batch, self._width), np.float32)}

    @property
    def _width(self) -> int:
        return _WIDE if self.name == "wide-node" else _WIDTH


class Encoder(SampleModel):
    """An encoder in the fused form: one of :data:`SIZES` or :data:`LATER`, or one of isorun's presets."""

    @property
    def vocabulary(self) -> int:
        """The number of token ids."""
        return int(self._settings["vocab_size"])

    @property
    def _settings(self) -> dict[str, Any]:
        return _ENCODERS[self.name] if self.name in _ENCODERS else presets.sizes(self.name)

    def write(self, path: Path) -> None:
        from isorun.graph.io import files

        model = presets.graph(self._settings, 0, self.name)
        if not self.dynamic:
            self._fix_shapes(model.graph.inputs)
            self._fix_shapes(model.graph.outputs)
        files.write(model, path)

    def _fix_shapes(self, values: Sequence[Any]) -> None:
        import onnx_ir as ir

        sizes = {"batch": self.batch, "sequence": self.sequence}
        for value in values:
            value.shape = ir.Shape([size if isinstance(size, int) else sizes[size.value] for size in value.shape])

    def feeds(
        self, seed: int = 0, *, batch: int | None = None, sequence: int | None = None, mask: str = "right"
    ) -> dict[str, np.ndarray]:
        """Random token ids, and types for a BERT, under one of :data:`MASK_KINDS`."""
        rows, length = batch or self.batch, sequence or self.sequence
        random = np.random.default_rng([seed, rows, length])
        names = {"input_ids": self.vocabulary, "attention_mask": 2}
        if self.name.startswith("bert"):
            names["token_type_ids"] = 2
        specs = [
            TensorSpec(name, "tensor(int64)", ("batch", "sequence"), bounds=(0, size - 1))
            for name, size in names.items()
        ]
        mask_array = MASK_KINDS[mask](rows, length, random)
        info = ModelInfo(tuple(specs), (), OPSET, mask="attention_mask")
        return random_feeds(info, random, batch=rows, sequence=length, mask=mask_array)

    def unmasked(self, seed: int = 0) -> dict[str, np.ndarray]:
        return self.feeds(seed, mask="none")


def dense(name: str = "few-nodes", *, dynamic: bool = False, seed: int = 0) -> Dense:
    """A dense model."""
    return Dense(name, dynamic, {"one-node": 16, "few-nodes": 4, "wide-node": 4, "heavy": 128}[name], seed=seed)


def encoder(name: str = "bert-2x32", *, dynamic: bool, shape: tuple[int, int] | None = None) -> Encoder:
    """An encoder, with default sizes (batch, sequence) of feeds that suit it."""
    return Encoder(name, dynamic, *(shape or ((3, 12) if name in _ENCODERS else (1, 64))))


def of_size(name: str, *, dynamic: bool) -> SampleModel:
    """The model of that name among :data:`SIZES` and :data:`BIG_SIZES`."""
    return encoder(name, dynamic=dynamic) if name.startswith("bert") else dense(name)
