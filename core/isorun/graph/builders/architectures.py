"""The encoder architectures of Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isorun.graph.builders.architecture import WORD_TABLE, Architecture, Head, sizes
from isorun.graph.tasks import ANSWERS, SEQUENCE, TOKENS, WORDS


def _heads(sequence: Head, words: Head) -> Mapping[str, Head]:
    """The heads of a family whose other two are BERT's."""
    return {SEQUENCE: sequence, TOKENS: Head("classifier"), ANSWERS: Head("qa_outputs"), WORDS: words}


def _words(dense: str, norm: str, output: str, activation: str = "hidden_act", bias: str = "") -> Head:
    """A head for masked words; ``activation`` may be a key of ``config.json``."""
    return Head(output, dense=dense, activation=activation, norm=norm, bias=bias, tied=WORD_TABLE)


_BERT_WORDS = _words(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    bias="cls.predictions.bias",
)
_ROBERTA_WORDS = _words("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "gelu", "lm_head.bias")
_ROBERTA_HEADS = _heads(Head("classifier.out_proj", "first", "classifier.dense"), _ROBERTA_WORDS)
_POOLED: Mapping[str, Head] = {SEQUENCE: Head("classifier", "pooler"), TOKENS: Head("classifier")}

BERT = Architecture("bert", _heads(Head("classifier", "pooler"), _BERT_WORDS))
ROBERTA = Architecture("roberta", _ROBERTA_HEADS, types="several", padding_id=1)
DISTILBERT = Architecture(
    "distilbert",
    _heads(
        Head("classifier", "first", "pre_classifier", "relu"),
        _words("vocab_transform", "vocab_layer_norm", "vocab_projector", "activation"),
    ),
    sizes=sizes(
        without="type_vocab_size",
        hidden_size="dim",
        num_hidden_layers="n_layers",
        num_attention_heads="n_heads",
        intermediate_size="hidden_dim",
    ),
    activation=("activation", "gelu"),
    types="none",
    layers="transformer.layer.{layer}",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attention_output="attention.out_lin",
    gate="ffn.lin1",
    down="ffn.lin2",
    after=("sa_layer_norm", "output_layer_norm"),
    pooler=None,
)
ELECTRA = Architecture(
    "electra",
    _heads(
        Head("classifier.out_proj", "first", "classifier.dense", "gelu"),
        _words("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head", "gelu"),
    ),
    sizes=sizes("embedding_size"),
    projection="embeddings_project",
    pooler=None,
)
ALBERT = Architecture(
    "albert",
    _heads(
        Head("classifier", "pooler"),
        _words("predictions.dense", "predictions.LayerNorm", "predictions.decoder", bias="predictions.bias"),
    ),
    sizes=sizes("embedding_size", "num_hidden_groups", "inner_group_num"),
    defaults={"num_hidden_groups": 1, "inner_group_num": 1},
    activation=("hidden_act", "gelu_new"),
    projection="encoder.embedding_hidden_mapping_in",
    always_projects=True,
    layers="encoder.albert_layer_groups.{group}.albert_layers.{inner}",
    query="attention.query",
    key="attention.key",
    value="attention.value",
    attention_output="attention.dense",
    gate="ffn",
    down="ffn_output",
    after=("attention.LayerNorm", "full_layer_layer_norm"),
    pooler="pooler",
)
MPNET = Architecture(
    "mpnet",
    _ROBERTA_HEADS,
    sizes=sizes("relative_attention_num_buckets", without="type_vocab_size"),
    defaults={"relative_attention_num_buckets": 32},
    types="none",
    padding_id=1,
    fixed_padding_id=True,
    relative="table",
    relative_bias="encoder.relative_attention_bias",
    buckets=32,
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    attention_output="attention.attn.o",
    after=("attention.LayerNorm", "output.LayerNorm"),
)

_DEBERTA_WORDS = _words("lm_predictions.lm_head.dense", "lm_predictions.lm_head.LayerNorm", "lm_predictions.lm_head")
DEBERTA = Architecture(
    "deberta",
    _heads(
        Head("classifier", "first", "pooler.dense", "pooler_hidden_act"),
        replace(_BERT_WORDS, unless=("legacy", _DEBERTA_WORDS)),
    ),
    defaults={"type_vocab_size": 0},
    epsilon=("layer_norm_eps", 1e-7),
    positions="position_biased_input",
    masked=True,
    relative="disentangled",
    query="attention.self.query_proj",
    key="attention.self.key_proj",
    value="attention.self.value_proj",
    pooler=None,
)
JINA = replace(
    BERT,
    positions=False,
    relative="alibi",
    gate="mlp.gated_layers",
    halves=("gate", "up"),
    down="mlp.wo",
    after=("attention.output.LayerNorm", "mlp.layernorm"),
    biases=dict.fromkeys(("norm", "attention", "attention_output", "down"), True),
)
"""JinaBERT v2."""
T5 = Architecture(
    "transformer",
    {TOKENS: Head("classifier")},
    sizes=sizes(
        *("relative_attention_num_buckets", "head_size"),
        without="max_position_embeddings type_vocab_size",
        hidden_size="d_model",
        num_hidden_layers="num_layers",
        num_attention_heads="num_heads",
        intermediate_size="d_ff",
        head_size="d_kv",
    ),
    defaults={"relative_attention_num_buckets": 32, "head_size": 64},
    epsilon=("layer_norm_epsilon", 1e-6),
    words=("encoder.embed_tokens", "shared"),  # where both are stored, transformers 5 does not tie them
    positions=False,
    types="none",
    embedding_norm=None,
    relative="table",
    relative_bias="encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    layers="encoder.block.{layer}",
    query="layer.0.SelfAttention.q",
    key="layer.0.SelfAttention.k",
    value="layer.0.SelfAttention.v",
    scale=1.0,
    attention_output="layer.0.SelfAttention.o",
    gate="layer.1.DenseReluDense.wi",
    down="layer.1.DenseReluDense.wo",
    before=("layer.0.layer_norm", "layer.1.layer_norm"),
    after=(None, None),
    post=False,
    final_norm="encoder.final_layer_norm",
    rms=True,
    biases={},
    pooler=None,
)
T5_GATED = replace(T5, gate="layer.1.DenseReluDense.wi_0", up="layer.1.DenseReluDense.wi_1")

_ROTARY: dict[str, Any] = {
    "relative": "rotary",
    "positions": False,
    "sizes": sizes("head_size", "num_key_value_heads", without="max_position_embeddings", head_size="head_dim"),
    "defaults": {"head_size": None, "num_key_value_heads": None, "type_vocab_size": 1},
}
_ATTENTION_BIASES = dict.fromkeys(("attention", "attention_output"), "attention_bias")
_MLP_BIASES = dict.fromkeys(("gate", "down"), "mlp_bias")
_MODERNBERT_HEAD = Head(
    "classifier",
    dense="head.dense",
    activation="classifier_activation",
    norm="head.norm",
    flags={"dense_bias": ("classifier_bias", False), "norm_bias": ("norm_bias", False)},
)
MODERNBERT = Architecture(
    "model",
    {
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
    **_ROTARY,
    activation=("hidden_activation", "gelu"),
    epsilon=("norm_eps", 1e-5),
    bases=(("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0)),
    windows=("global_attn_every_n_layers", 3, 0),
    words=("embeddings.tok_embeddings",),
    types="none",
    embedding_norm="embeddings.norm",
    layers="layers.{layer}",
    query="attn.Wqkv",
    key=None,
    value=None,
    attention_output="attn.Wo",
    gate="mlp.Wi",
    halves=("gate", "up"),
    down="mlp.Wo",
    before=("attn_norm", "mlp_norm"),
    after=(None, None),
    post=False,
    first_norm=False,
    final_norm="final_norm",
    biases={**_ATTENTION_BIASES, **_MLP_BIASES, "norm": "norm_bias"},
)
EUROBERT = Architecture(
    "model",
    {
        SEQUENCE: Head("classifier", "classifier_pooling", "dense", "gelu"),
        TOKENS: Head("classifier"),
        WORDS: Head("lm_head", tied="embed_tokens", flags={"has_bias": ("mlp_bias", False)}),
    },
    **_ROTARY,
    activation=("hidden_act", "silu"),
    epsilon=("rms_norm_eps", 1e-5),
    words=("embed_tokens",),
    types="none",
    embedding_norm=None,
    layers="layers.{layer}",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    attention_output="self_attn.o_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
    before=("input_layernorm", "post_attention_layernorm"),
    after=(None, None),
    post=False,
    final_norm="norm",
    rms=True,
    biases={**_ATTENTION_BIASES, **_MLP_BIASES},
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
    epsilon=("rms_norm_eps", 1e-6),
    head_norms=_HEAD_NORMS,
    causal=True,
    biases=_ATTENTION_BIASES,
)
LLAMA = replace(QWEN3, head_norms=None, biases=EUROBERT.biases)
GEMMA = replace(
    EUROBERT,
    heads={SEQUENCE: _LAST},
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    epsilon=("rms_norm_eps", 1e-6),
    bases=(("rope_theta", 1_000_000.0), ("rope_local_base_freq", 10_000.0)),
    windows=("sliding_window_pattern", 6, 1),
    scaled=True,
    head_norms=_HEAD_NORMS,
    before=("input_layernorm", "pre_feedforward_layernorm"),
    after=("post_attention_layernorm", "post_feedforward_layernorm"),
    rms_offset=1.0,
    biases=_ATTENTION_BIASES,
)
GTE = Architecture(
    "gte",
    {**_POOLED, WORDS: replace(_ROBERTA_WORDS, norm="lm_head.norm", bias="")},
    **_ROTARY,
    bases=(("rope_theta", 160_000.0), ("rope_theta", 160_000.0)),
    types="several",
    query="attention.qkv_proj",
    key=None,
    value=None,
    attention_output="attention.o_proj",
    gate="mlp.up_gate_proj",
    halves=("up", "gate"),
    down="mlp.down_proj",
    after=("attn_ln", "mlp_ln"),
    biases=JINA.biases,
)
NOMIC = replace(
    GTE,
    prefix="nomic_bert",
    heads={**_POOLED, WORDS: replace(_BERT_WORDS, norm="cls.predictions.transform.layer_norm")},
    defaults={**GTE.defaults, "type_vocab_size": 2},
    activation=("hidden_act", "silu"),
    bases=(("rope_theta", 1_000.0), ("rope_theta", 1_000.0)),
    embedding_norm="emb_ln",
    layers="encoder.layers.{layer}",
    query="attn.Wqkv",
    attention_output="attn.out_proj",
    gate="mlp.fc12",
    up="mlp.fc11",
    halves=None,
    down="mlp.fc2",
    after=("norm1", "norm2"),
    biases={"norm": True},
)
JINA3 = replace(
    NOMIC,
    prefix="roberta",
    heads=_ROBERTA_HEADS,
    defaults=GTE.defaults,
    activation=("hidden_act", "gelu"),
    epsilon=("layer_norm_eps", 1e-5),
    bases=(("rope_theta", 20_000.0), ("rope_theta", 20_000.0)),
    query="mixer.Wqkv",
    attention_output="mixer.out_proj",
    gate="mlp.fc1",
    up=None,
    biases=BERT.biases,
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": BERT,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "albert": ALBERT,
    "mpnet": MPNET,
    "deberta-v2": DEBERTA,
    "t5": T5,
    "mt5": T5,
    "modernbert": MODERNBERT,
    "eurobert": EUROBERT,
    "nomic_bert": NOMIC,
    "gte": GTE,
    "new": replace(GTE, prefix="new", bases=EUROBERT.bases),  # GTE as its authors publish it
    "jina_embeddings_v3": JINA3,
    "gemma3_text": GEMMA,
    "qwen3": QWEN3,
    "qwen2": replace(LLAMA, biases={"attention": True}),
    "llama": LLAMA,
    "mistral": replace(LLAMA, prefixes={}, biases={}),
}
"""The architectures by ``model_type`` in ``config.json``."""
