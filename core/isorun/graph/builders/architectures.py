"""The encoder architectures of Hugging Face checkpoints: tensor names, sizes, embeddings, heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from isorun.graph.builders.heads import Head
from isorun.graph.tasks import ANSWERS, SEQUENCE, TOKENS, WORDS

WORD_TABLE = "embeddings.word_embeddings"
"""The table that heads for masked words share."""


@dataclass(frozen=True)
class LayerTensors:
    """The names of a layer's tensors, without the layer's prefix, ``.weight`` and ``.bias``. Defaults: BERT."""

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    intermediate: str = "intermediate.dense"
    output: str = "output.dense"
    output_norm: str = "output.LayerNorm"


def _sizes(*more: str, without: str = "", **renamed: str) -> Mapping[str, str]:
    """The keys in ``config.json`` of BERT's sizes and more, by isorun's names; equal unless renamed."""
    names = (
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        *("max_position_embeddings", "type_vocab_size"),
        *more,
    )
    return {name: renamed.get(name, name) for name in names if name != without}


@dataclass(frozen=True)
class Architecture:
    """A family of encoders. The defaults are BERT's.

    Attributes:
        prefix: the prefix of the encoder's tensors in a model with a head.
        heads: the heads, by task.
        sizes: the keys of the sizes in ``config.json``, by isorun's names.
        defaults: the sizes that ``config.json`` may omit.
        activation: the key of the activation in ``config.json``, and its default.
        words: the names that the table of words may have; of several that are stored, the first one counts.
        positions: whether the embeddings have a table of positions, or the key of ``config.json`` that says so.
        layers: the prefix of a layer's tensors, with ``{layer}``, or with ``{group}`` and ``{inner}`` if layers share
            weights.
        types: ``input`` if token types are an input, ``several`` if they are where there is more than one, else
            ``none``.
        padding_id: the default padding id, if positions count the ids other than padding, starting after that id.
            ``None`` if positions are 0, 1, 2 ...
        fixed_padding_id: whether ``config.json`` cannot change it.
        projection: the dense layer from the embeddings' width to the layers' width, if they may differ.
        always_projects: whether the projection exists even if the widths are equal.
        relative_bias: the table of the relative position bias of attention scores.
        buckets: the number of buckets of distances, whatever the size of that table; ``None`` for that size.
        pooler: the dense layer of the pooler; ``None`` if there is none.
        epsilon: of normalizations, unless ``config.json`` says.
        builder: which class builds it, beside BERT's.
    """

    prefix: str
    heads: Mapping[str, Head]
    sizes: Mapping[str, str] = field(default_factory=_sizes)
    defaults: Mapping[str, int] = field(default_factory=dict)
    activation: tuple[str, str] = ("hidden_act", "gelu")
    words: tuple[str, ...] = (WORD_TABLE,)
    positions: bool | str = True
    layers: str = "encoder.layer.{layer}"
    layer: LayerTensors = LayerTensors()
    types: str = "input"
    padding_id: int | None = None
    fixed_padding_id: bool = False
    projection: str | None = None
    always_projects: bool = False
    relative_bias: str | None = None
    buckets: int | None = None
    pooler: str | None = "pooler.dense"
    epsilon: float = 1e-12
    builder: str = "bert"

    def has_positions(self, settings: Mapping[str, Any]) -> bool:
        """Whether the embeddings have a table of positions, with the settings in ``config.json``."""
        return bool(settings.get(self.positions, True)) if isinstance(self.positions, str) else self.positions


def _heads(sequence: Head, words: Head) -> Mapping[str, Head]:
    """The heads of a family whose other two are BERT's."""
    return {SEQUENCE: sequence, TOKENS: Head("classifier"), ANSWERS: Head("qa_outputs"), WORDS: words}


def _words(dense: str, norm: str, output: str, activation: str = "hidden_act", bias: str = "") -> Head:
    """A head for masked words; ``activation`` may be a key of ``config.json``."""
    return Head(output, dense=dense, activation=activation, norm=norm, bias=bias, tied=WORD_TABLE)


BERT_WORDS = _words(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    bias="cls.predictions.bias",
)
ROBERTA_WORDS = _words("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "gelu", "lm_head.bias")
ROBERTA_HEADS = _heads(Head("classifier.out_proj", "first", "classifier.dense"), ROBERTA_WORDS)
_BERT_HEADS = _heads(Head("classifier", "pooler"), BERT_WORDS)

BERT = Architecture("bert", _BERT_HEADS)
ROBERTA = Architecture("roberta", ROBERTA_HEADS, types="several", padding_id=1)
DISTILBERT = Architecture(
    "distilbert",
    _heads(
        Head("classifier", "first", "pre_classifier", "relu"),
        _words("vocab_transform", "vocab_layer_norm", "vocab_projector", "activation"),
    ),
    sizes=_sizes(
        without="type_vocab_size",
        hidden_size="dim",
        num_hidden_layers="n_layers",
        num_attention_heads="n_heads",
        intermediate_size="hidden_dim",
    ),
    activation=("activation", "gelu"),
    layers="transformer.layer.{layer}",
    layer=LayerTensors(
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_output="attention.out_lin",
        attention_norm="sa_layer_norm",
        intermediate="ffn.lin1",
        output="ffn.lin2",
        output_norm="output_layer_norm",
    ),
    types="none",
    pooler=None,
)
ELECTRA = Architecture(
    "electra",
    _heads(
        Head("classifier.out_proj", "first", "classifier.dense", "gelu"),
        _words("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head", "gelu"),
    ),
    sizes=_sizes("embedding_size"),
    projection="embeddings_project",
    pooler=None,
)
ALBERT = Architecture(
    "albert",
    _heads(
        Head("classifier", "pooler"),
        _words("predictions.dense", "predictions.LayerNorm", "predictions.decoder", bias="predictions.bias"),
    ),
    sizes=_sizes("embedding_size", "num_hidden_groups", "inner_group_num"),
    defaults={"num_hidden_groups": 1, "inner_group_num": 1},
    activation=("hidden_act", "gelu_new"),
    layers="encoder.albert_layer_groups.{group}.albert_layers.{inner}",
    layer=LayerTensors(
        query="attention.query",
        key="attention.key",
        value="attention.value",
        attention_output="attention.dense",
        attention_norm="attention.LayerNorm",
        intermediate="ffn",
        output="ffn_output",
        output_norm="full_layer_layer_norm",
    ),
    projection="encoder.embedding_hidden_mapping_in",
    always_projects=True,
    pooler="pooler",
)
MPNET = Architecture(
    "mpnet",
    ROBERTA_HEADS,
    sizes=_sizes("relative_attention_num_buckets", without="type_vocab_size"),
    defaults={"relative_attention_num_buckets": 32},
    layer=LayerTensors(
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        attention_output="attention.attn.o",
        attention_norm="attention.LayerNorm",
    ),
    types="none",
    padding_id=1,
    fixed_padding_id=True,
    relative_bias="encoder.relative_attention_bias",
    buckets=32,
)

_DEBERTA_WORDS = _words("lm_predictions.lm_head.dense", "lm_predictions.lm_head.LayerNorm", "lm_predictions.lm_head")
DEBERTA = Architecture(
    "deberta",
    _heads(
        Head("classifier", "first", "pooler.dense", "pooler_hidden_act"),
        replace(BERT_WORDS, unless=("legacy", _DEBERTA_WORDS)),
    ),
    defaults={"type_vocab_size": 0},
    layer=LayerTensors(
        query="attention.self.query_proj", key="attention.self.key_proj", value="attention.self.value_proj"
    ),
    positions="position_biased_input",
    pooler=None,
    epsilon=1e-7,
    builder="deberta",
)
JINA = Architecture("bert", _BERT_HEADS, positions=False, builder="jina")
T5 = Architecture(
    "transformer",
    {TOKENS: Head("classifier")},
    sizes={
        **{"vocab_size": "vocab_size", "hidden_size": "d_model", "num_hidden_layers": "num_layers"},
        **{"num_attention_heads": "num_heads", "intermediate_size": "d_ff"},
        "relative_attention_num_buckets": "relative_attention_num_buckets",
    },
    defaults={"relative_attention_num_buckets": 32},
    words=("encoder.embed_tokens", "shared"),  # where both are stored, transformers 5 does not tie them
    positions=False,
    layers="encoder.block.{layer}",
    layer=LayerTensors("layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v"),
    types="none",
    relative_bias="encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    pooler=None,
    builder="t5",
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "albert": ALBERT,
    "mpnet": MPNET,
    "deberta-v2": DEBERTA,
    "t5": T5,
    "mt5": T5,
}
"""The architectures by ``model_type`` in ``config.json``."""
