"""The families of encoders with rotary positions: where each keeps its tensors, and how its layers are built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from isorun.graph.builders.architectures import BERT_WORDS, ROBERTA_HEADS, ROBERTA_WORDS
from isorun.graph.builders.heads import Head
from isorun.graph.tasks import ANSWERS, SEQUENCE, TOKENS, WORDS


@dataclass(frozen=True)
class RotaryFamily:
    """A family of encoders: names of tensors, and how its layers are built.

    Attributes:
        prefix: the prefix of the encoder's tensors in a model with a head.
        words: the table of words.
        types: the table of token types; ``None`` if there is none.
        embedding_norm: the normalization of the embeddings; ``None`` if there is none.
        query, key, value: the projections, below a layer's prefix; ``query`` alone if one layer computes all three.
        attention_output: the dense layer after the attention.
        head_norms: the normalizations of queries and keys.
        before, after: the normalizations of what the attention and the MLP read and give; before or after the sum.
        post: whether normalizations ``after`` follow the sums (BERT's order), rather than precede them.
        gate, up, down: the MLP; without ``up``, ``gate`` computes both.
        gate_second: whether it computes the gate after the other half.
        plain: whether the MLP has no gate.
        final_norm: the normalization after the last layer.
        rms: whether normalizations are RMS normalizations; ``rms_offset`` is added to their weights.
        biases: the dense layers with a bias: ``attention``, ``attention_output``, ``gate``, ``down``; ``norm`` for the
            normalizations. Named by a setting if ``config.json`` says.
        first_norm: whether the first layer has a normalization before its attention.
        scaled: whether embeddings are multiplied by the root of their width.
        causal: whether tokens attend to none after them.
        heads: the heads, by task.
        prefixes: the prefix in a model with a head, where the task decides.
    """

    words: str
    query: str
    attention_output: str
    down: str
    gate: str
    key: str | None = None
    value: str | None = None
    up: str | None = None
    prefix: str = "model"
    layers: str = "layers.{layer}"
    types: str | None = None
    embedding_norm: str | None = None
    head_norms: tuple[str, str] | None = None
    before: tuple[str | None, str | None] = (None, None)
    after: tuple[str | None, str | None] = (None, None)
    post: bool = False
    gate_second: bool = False
    plain: bool = False
    final_norm: str | None = None
    rms: bool = False
    rms_offset: float = 0.0
    biases: Mapping[str, bool | str] = field(default_factory=dict)
    first_norm: bool = True
    scaled: bool = False
    causal: bool = False
    heads: Mapping[str, Head] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)


_MODERNBERT_HEAD = Head(
    "classifier",
    dense="head.dense",
    activation="classifier_activation",
    norm="head.norm",
    flags={"dense_bias": ("classifier_bias", False), "norm_bias": ("norm_bias", False)},
)
MODERNBERT = RotaryFamily(
    heads={
        SEQUENCE: replace(_MODERNBERT_HEAD, reads="classifier_pooling"),
        TOKENS: _MODERNBERT_HEAD,
        ANSWERS: _MODERNBERT_HEAD,
        WORDS: replace(
            _MODERNBERT_HEAD,
            output="decoder",
            tied="embeddings.tok_embeddings",
            flags={**_MODERNBERT_HEAD.flags, "has_bias": ("decoder_bias", True)},
        ),
    },
    words="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    query="attn.Wqkv",
    attention_output="attn.Wo",
    before=("attn_norm", "mlp_norm"),
    first_norm=False,
    gate="mlp.Wi",
    down="mlp.Wo",
    final_norm="final_norm",
    biases={
        **{"attention": "attention_bias", "attention_output": "attention_bias", "gate": "mlp_bias"},
        **{"down": "mlp_bias", "norm": "norm_bias"},
    },
)
_LLAMA: dict[str, Any] = {
    **{"query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj"},
    "attention_output": "self_attn.o_proj",
    **{"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"},
}
EUROBERT = RotaryFamily(
    **_LLAMA,
    heads={
        SEQUENCE: Head("classifier", "classifier_pooling", "dense", "gelu"),
        TOKENS: Head("classifier"),
        WORDS: Head("lm_head", tied="embed_tokens", flags={"has_bias": ("mlp_bias", False)}),
    },
    words="embed_tokens",
    before=("input_layernorm", "post_attention_layernorm"),
    final_norm="norm",
    rms=True,
    biases={
        **{"attention": "attention_bias", "attention_output": "attention_bias", "gate": "mlp_bias", "down": "mlp_bias"}
    },
)
_HEAD_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
_LAST = Head("score", "last", has_bias=False)
QWEN3 = replace(
    EUROBERT,
    heads={
        SEQUENCE: _LAST,
        TOKENS: Head("score", flags={"has_bias": ("token_classification_bias", True)}),
        ANSWERS: Head("qa_outputs"),
    },
    prefixes={ANSWERS: "transformer"},
    head_norms=_HEAD_NORMS,
    biases={"attention": "attention_bias", "attention_output": "attention_bias"},
    causal=True,
)
LLAMA = replace(QWEN3, head_norms=None, biases=EUROBERT.biases)
MISTRAL = replace(LLAMA, prefixes={}, biases={})
QWEN2 = replace(LLAMA, biases={"attention": True})
GEMMA = RotaryFamily(
    **_LLAMA,
    heads={SEQUENCE: _LAST},
    words="embed_tokens",
    head_norms=_HEAD_NORMS,
    before=("input_layernorm", "pre_feedforward_layernorm"),
    after=("post_attention_layernorm", "post_feedforward_layernorm"),
    final_norm="norm",
    rms=True,
    rms_offset=1.0,
    scaled=True,
    biases={"attention": "attention_bias", "attention_output": "attention_bias"},
)
_POST: dict[str, Any] = {
    **{"words": "embeddings.word_embeddings", "types": "embeddings.token_type_embeddings"},
    "post": True,
}
_POOLED: Mapping[str, Head] = {SEQUENCE: Head("classifier", "pooler"), TOKENS: Head("classifier")}
_FLASH: dict[str, Any] = {
    **{"embedding_norm": "emb_ln", "layers": "encoder.layers.{layer}", "after": ("norm1", "norm2"), "down": "mlp.fc2"}
}
NOMIC = RotaryFamily(
    **_POST,
    **_FLASH,
    prefix="nomic_bert",
    heads={**_POOLED, WORDS: replace(BERT_WORDS, norm="cls.predictions.transform.layer_norm")},
    query="attn.Wqkv",
    attention_output="attn.out_proj",
    gate="mlp.fc12",
    up="mlp.fc11",
    biases={"norm": True},
)
JINA = RotaryFamily(
    **_POST,
    **_FLASH,
    prefix="roberta",
    heads=ROBERTA_HEADS,
    query="mixer.Wqkv",
    attention_output="mixer.out_proj",
    gate="mlp.fc1",
    plain=True,
    biases={"norm": True, "attention": True, "attention_output": True, "down": True},
)
GTE = RotaryFamily(
    **_POST,
    prefix="gte",
    heads={**_POOLED, WORDS: replace(ROBERTA_WORDS, norm="lm_head.norm", bias="")},
    query="attention.qkv_proj",
    embedding_norm="embeddings.LayerNorm",
    layers="encoder.layer.{layer}",
    after=("attn_ln", "mlp_ln"),
    attention_output="attention.o_proj",
    gate="mlp.up_gate_proj",
    gate_second=True,
    down="mlp.down_proj",
    biases={"norm": True, "attention": True, "attention_output": True, "down": True},
)
NEW = replace(GTE, prefix="new")
"""GTE as its authors publish it."""
