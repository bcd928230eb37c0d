"""How the encoders that Hugging Face has checkpoints of differ: names of tensors, sizes, embeddings, heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Layer:
    """The names of a layer's tensors, after the layer's own, without ``.weight`` and ``.bias``. The defaults are
    BERT's."""

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    intermediate: str = "intermediate.dense"
    output: str = "output.dense"
    output_norm: str = "output.LayerNorm"


@dataclass(frozen=True)
class FirstToken:
    """A sequence classifier: dense layer, activation and dense layer over the first position.

    ``dense`` may be the pooler itself. ``activation`` is an operator: ``Tanh``, ``Relu`` or the fused ``BiasGelu``.
    """

    dense: str
    activation: str
    output: str


def _sizes(*more: str, without: str = "", **renamed: str) -> Mapping[str, str]:
    """BERT's sizes and more, ours to ``config.json``'s name for each: the same, unless it is renamed."""
    names = (
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        *("max_position_embeddings", "type_vocab_size"),
        *more,
    )
    return {name: renamed.get(name, name) for name in names if name != without}


@dataclass(frozen=True)
class Architecture:
    """One family of encoders. What is not said is BERT's.

    Attributes:
        prefix: stands before the encoder's tensors where a head stands on the encoder.
        sizes: the sizes that ``config.json`` has to give, ours to its name for each.
        defaults: those of them that ``config.json`` may leave out.
        activation: the key of the activation in ``config.json``, and what it is where it is not there.
        layers: a layer's name, by ``{layer}``; by ``{group}`` and ``{inner}`` where layers share their weights.
        types: ``input`` where the model takes token types, ``zero`` where all tokens have type 0, else ``none``.
        padding_id: positions count the ids that are not padding, beginning behind padding's id: that id where
            ``config.json`` says nothing. ``None``: positions are places.
        fixed_padding_id: whether ``config.json`` has no say in it.
        projection: the dense layer from the embeddings' width to the layers', where the two differ.
        always_projects: the embeddings pass through that layer even where the widths are the same.
        relative_bias: the table of the bias that attention scores get by the distance of query and key.
        pooler: the dense layer of the pooler; ``None`` where the family has none.
    """

    prefix: str
    classifier: FirstToken
    sizes: Mapping[str, str] = field(default_factory=_sizes)
    defaults: Mapping[str, int] = field(default_factory=dict)
    activation: tuple[str, str] = ("hidden_act", "gelu")
    layers: str = "encoder.layer.{layer}"
    layer: Layer = Layer()
    types: str = "input"
    padding_id: int | None = None
    fixed_padding_id: bool = False
    projection: str | None = None
    always_projects: bool = False
    relative_bias: str | None = None
    pooler: str | None = "pooler.dense"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the graph's inputs."""
        return ("input_ids", "attention_mask", "token_type_ids") if self.types == "input" else _WITHOUT_TYPES

    @property
    def classifies_pooled(self) -> bool:
        """Whether a sequence classifier stands on the pooler."""
        return self.classifier.dense == self.pooler


_WITHOUT_TYPES = ("input_ids", "attention_mask")
_CLASSIFIER_OF_ROBERTA = FirstToken("classifier.dense", "Tanh", "classifier.out_proj")

BERT = Architecture("bert", FirstToken("pooler.dense", "Tanh", "classifier"))
ROBERTA = Architecture("roberta", _CLASSIFIER_OF_ROBERTA, types="zero", padding_id=1)
DISTILBERT = Architecture(
    "distilbert",
    FirstToken("pre_classifier", "Relu", "classifier"),
    sizes=_sizes(
        without="type_vocab_size",
        hidden_size="dim",
        num_hidden_layers="n_layers",
        num_attention_heads="n_heads",
        intermediate_size="hidden_dim",
    ),
    activation=("activation", "gelu"),
    layers="transformer.layer.{layer}",
    layer=Layer(
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
    FirstToken("classifier.dense", "BiasGelu", "classifier.out_proj"),
    sizes=_sizes("embedding_size"),
    projection="embeddings_project",
    pooler=None,
)
ALBERT = Architecture(
    "albert",
    FirstToken("pooler", "Tanh", "classifier"),
    sizes=_sizes("embedding_size", "num_hidden_groups", "inner_group_num"),
    defaults={"num_hidden_groups": 1, "inner_group_num": 1},
    activation=("hidden_act", "gelu_new"),
    layers="encoder.albert_layer_groups.{group}.albert_layers.{inner}",
    layer=Layer(
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
    _CLASSIFIER_OF_ROBERTA,
    sizes=_sizes("relative_attention_num_buckets", without="type_vocab_size"),
    defaults={"relative_attention_num_buckets": 32},
    layer=Layer(
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
}
"""By the ``model_type`` in ``config.json``."""
