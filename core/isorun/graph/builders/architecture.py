"""What a family of encoders has in common: names of tensors, keys of ``config.json``, and how its layers and heads are
built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WORD_TABLE = "embeddings.word_embeddings"
"""The table that heads for masked words share."""


def sizes(*more: str, without: str = "", **renamed: str) -> Mapping[str, str]:
    """The keys in ``config.json`` of BERT's sizes and more, by isorun's names; equal unless renamed."""
    names = (
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        *("max_position_embeddings", "type_vocab_size"),
        *more,
    )
    return {name: renamed.get(name, name) for name in names if name not in without.split()}


@dataclass(frozen=True)
class Head:
    """A head, by the names of its layers.

    Attributes:
        output: the last dense layer.
        reads: what the head reads of the hidden states: ``tokens`` (all); ``pooler``; ``first``; ``last`` (the last
            token that is not padding by its id); ``end`` (the last token in the mask); ``mean`` of the tokens in the
            mask; ``late`` for the mean of the tokens' logits; or ``classifier_pooling``, if that key of
            ``config.json`` says which.
        dense: a dense layer before; ``None`` if there is none.
        activation: after it: one of :data:`isorun.graph.builders.activations.NAMES`, or the key of ``config.json`` that
            says which.
        norm: a layer normalization after the activation; ``None`` if there is none.
        inner: the width of the dense layer; ``None`` for the encoder's.
        dense_bias, norm_bias: whether these layers have biases.
        has_bias: whether the last layer has a bias.
        bias: its tensor; empty for the last layer's own.
        tied: the table of words whose transpose the last layer is; ``None`` if it has a matrix of its own.
        splade: how the logits of a text become one vector: ``max`` or ``sum``, and ``relu`` or ``log1p_relu``;
            ``None`` if they do not.
        words: the rows of a table of words that the last layer is the difference of, or its only one; ``None`` if it
            is all of them.
        unless: a key of ``config.json``, true by default, and the head in place of this one where it is false; ``None``
            if there is no other.
        flags: the fields that a key of ``config.json`` decides, each with the key and its default.
    """

    output: str
    reads: str = "tokens"
    dense: str | None = None
    activation: str = "tanh"
    norm: str | None = None
    inner: int | None = None
    dense_bias: bool = True
    norm_bias: bool = True
    has_bias: bool = True
    bias: str = ""
    tied: str | None = None
    splade: tuple[str, str] | None = None
    words: tuple[int, int | None] | None = None
    unless: tuple[str, Head] | None = None
    flags: Mapping[str, tuple[str, bool]] = field(default_factory=dict)


@dataclass(frozen=True)
class Architecture:
    """A family of encoders. The defaults are BERT's.

    Attributes:
        prefix: the prefix of the encoder's tensors in a model with a head.
        heads: the heads, by task.
        prefixes: the prefix in a model with a head, where the task decides.
        sizes: the keys of the sizes in ``config.json``, by isorun's names.
        defaults: the sizes that ``config.json`` may omit.
        activation: the key of the activation in ``config.json``, and its default.
        epsilon: the key of what normalizations add to a variance, and its default.
        bases: the keys of the bases of rotary positions, and their defaults: of all layers, and of those with a window.
        windows: a layer has a window unless its number, plus the last item, is a multiple of a number: its key, and its
            default. ``None`` if only ``layer_types`` says.
        words: the names that the table of words may have; of several that are stored, the first one counts.
        positions: whether the embeddings have a table of positions, or the key of ``config.json`` that says so.
        types: ``input`` if token types are an input, ``several`` if they are where there is more than one, else
            ``none``.
        padding_id: the default padding id, if positions count the ids other than padding, starting after that id.
            ``None`` if positions are 0, 1, 2 ...
        fixed_padding_id: whether ``config.json`` cannot change it.
        embedding_norm: the normalization of the embeddings; ``None`` if there is none.
        scaled: whether embeddings are multiplied by the root of their width.
        masked: whether embeddings of padding are zeros.
        projection: the dense layer from the embeddings' width to the layers' width, if they may differ.
        always_projects: whether the projection exists even if the widths are equal.
        relative: how scores depend on the distance of two tokens, one of :data:`isorun.graph.builders.relative.KINDS`.
        relative_bias: the table of the relative position bias of attention scores.
        buckets: the number of buckets of distances, whatever the size of that table; ``None`` for that size.
        layers: the prefix of a layer's tensors, with ``{layer}``, or with ``{group}`` and ``{inner}`` if layers share
            weights.
        query, key, value: the projections, below a layer's prefix; ``query`` alone if one layer computes all three.
        head_norms: the normalizations of queries and keys.
        scale: of the scores; ``None`` for 1 / sqrt(the size of a head).
        causal: whether tokens attend to none after them.
        attention_output: the dense layer after the attention.
        gate, up, down: the MLP: ``down(activation(gate(x)) * up(x))``, or ``down(activation(gate(x)))``.
        halves: which half of the layer ``gate`` computes what, if it computes both ``gate`` and ``up``.
        before, after: the normalizations of what the attention and the MLP read and give.
        post: whether normalizations ``after`` follow the sums (BERT's order), rather than precede them.
        first_norm: whether the first layer has a normalization before its attention.
        final_norm: the normalization after the last layer.
        rms: whether normalizations are RMS normalizations; ``rms_offset`` is added to their weights.
        biases: the dense layers with a bias: ``attention``, ``attention_output``, ``gate``, ``down``; ``norm`` for the
            normalizations. Named by a setting if ``config.json`` says.
        pooler: the dense layer of the pooler; ``None`` if there is none.
    """

    prefix: str
    heads: Mapping[str, Head]
    prefixes: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, str] = field(default_factory=sizes)
    defaults: Mapping[str, int | None] = field(default_factory=dict)
    activation: tuple[str, str] = ("hidden_act", "gelu")
    epsilon: tuple[str, float] = ("layer_norm_eps", 1e-12)
    bases: tuple[tuple[str, float], ...] = (("rope_theta", 10_000.0), ("rope_theta", 10_000.0))
    windows: tuple[str, int, int] | None = None
    words: tuple[str, ...] = (WORD_TABLE,)
    positions: bool | str = True
    types: str = "input"
    padding_id: int | None = None
    fixed_padding_id: bool = False
    embedding_norm: str | None = "embeddings.LayerNorm"
    scaled: bool = False
    masked: bool = False
    projection: str | None = None
    always_projects: bool = False
    relative: str = "none"
    relative_bias: str = ""
    buckets: int | None = None
    layers: str = "encoder.layer.{layer}"
    query: str = "attention.self.query"
    key: str | None = "attention.self.key"
    value: str | None = "attention.self.value"
    head_norms: tuple[str, str] | None = None
    scale: float | None = None
    causal: bool = False
    attention_output: str = "attention.output.dense"
    gate: str = "intermediate.dense"
    up: str | None = None
    down: str = "output.dense"
    halves: tuple[str, str] | None = None
    before: tuple[str | None, str | None] = (None, None)
    after: tuple[str | None, str | None] = ("attention.output.LayerNorm", "output.LayerNorm")
    post: bool = True
    first_norm: bool = True
    final_norm: str | None = None
    rms: bool = False
    rms_offset: float = 0.0
    biases: Mapping[str, bool | str] = field(
        default_factory=lambda: dict.fromkeys(("norm", "attention", "attention_output", "gate", "down"), True)
    )
    pooler: str | None = "pooler.dense"

    def has_positions(self, settings: Mapping[str, Any]) -> bool:
        """Whether the embeddings have a table of positions, with the settings in ``config.json``."""
        return bool(settings.get(self.positions, True)) if isinstance(self.positions, str) else self.positions
