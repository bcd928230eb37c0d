"""The sizes and settings of an encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isorun.graph.builders.architecture import WORD_TABLE, Architecture, Head
from isorun.graph.builders.architectures import BERT


@dataclass(frozen=True)
class EncoderConfig:
    """The sizes of an encoder, by the names in BERT's ``config.json``.

    ``task`` is the task of a head, ``head`` its layers, or both are ``None``; ``labels`` is the width of its logits.
    ``words`` is the table of words, for which the architecture may have several names. ``embedding_size`` is the width
    of the embeddings, if it differs from the layers'. ``pad_token_id`` is needed where positions or a head look for
    padding. ``num_hidden_groups`` groups of ``inner_group_num`` layers share their weights, if the architecture shares
    any. ``settings`` is the whole ``config.json``, for what only one family has.

    Of rotary positions, ``rotations`` has for each layer the base and the window in tokens to either side, and
    ``stretch`` is NTK scaling: the base is multiplied by it, and angles are divided by its power of 2 / head_size.
    ``scale`` is that of the scores, if the architecture does not decide.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    pooler: bool = True
    task: str | None = None
    head: Head | None = None
    labels: int = 2
    architecture: Architecture = BERT
    words: str = WORD_TABLE
    embedding_size: int | None = None
    pad_token_id: int | None = 0
    num_hidden_groups: int = 1
    inner_group_num: int = 1
    relative_attention_num_buckets: int = 32
    head_size: int | None = None
    num_key_value_heads: int | None = None
    rotations: Sequence[tuple[float, int | None]] = ()
    stretch: float = 1.0
    scale: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the graph's inputs."""
        types = self.type_vocab_size > {"input": 0, "several": 1, "none": math.inf}[self.architecture.types]
        return ("input_ids", "attention_mask", "token_type_ids")[: 3 if types else 2]

    @property
    def head_width(self) -> int:
        """The size of a head."""
        return self.head_size or self.hidden_size // self.num_attention_heads

    def has_bias(self, part: str) -> bool:
        """Whether layers have a bias, by the names of :attr:`Architecture.biases`."""
        source = self.architecture.biases.get(part, False)
        return bool(self.settings.get(source, False)) if isinstance(source, str) else source
