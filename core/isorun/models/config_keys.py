"""The keys of ``config.json`` for each kind of encoder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models.keys import (
    ANY,
    EMPTY,
    FLAG,
    SIZE,
    TEXT,
    Key,
    Table,
    check,
    integer,
    items,
    number,
    only,
    optional,
    read_object,
    shown,
    unused,
)
from isorun.system.paths import inside

MAX_LAYERS = 128
"""The maximum number of layers, which may share weights; the deepest published encoders have 48."""

_LAYERS = Key(lambda value: type(value) is int and 0 < value <= MAX_LAYERS, f"an integer above 0, at most {MAX_LAYERS}")
_ID = optional(integer(-1, 2**31 - 1))
_EPSILON = Key(lambda value: type(value) in (int, float) and 0 <= value < 1, "a number of at least 0 and below 1")
# Tables of these sizes are computed, so no tensor's shape limits them.
_DISTANCE = integer(-1, 2**16)
_HEAD_SIZE = optional(integer(1, 2**14))

# What transformers writes into every configuration: training, generation, bookkeeping.
_COMMON: Table = {
    **unused(
        "model_type architectures transformers_version torch_dtype dtype _name_or_path _commit_hash name_or_path "
        "return_dict output_hidden_states output_attentions output_past torchscript use_bfloat16 tf_legacy_loss "
        "use_cache tie_word_embeddings tie_encoder_decoder chunk_size_feed_forward gradient_checkpointing "
        "is_encoder_decoder cross_attention_hidden_size max_length min_length do_sample early_stopping num_beams "
        "num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty "
        "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores "
        "return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values "
        "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens finetuning_task label2id id2label "
        "num_labels _num_labels problem_type tokenizer_class prefix task_specific_params decoder_start_token_id "
        "bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id bos_token eos_token pad_token mask_token "
        "initializer_range initializer_factor classifier_dropout classifier_dropout_prob hidden_dropout_prob "
        "attention_probs_dropout_prob attention_dropout hidden_dropout language languages "
        "attn_implementation _attn_implementation _attn_implementation_autoset attn_implementation_internal "
        "_attn_implementation_internal is_composition license model_max_length "
        "adapters xla_device use_return_dict unsloth_version unsloth_fixed"
    ),
    "pad_token_id": _ID,
    "is_decoder": FLAG,
    "add_cross_attention": FLAG,
    "position_embedding_type": ANY,
    "pruned_heads": EMPTY,
    "quantization_config": EMPTY,
    "auto_map": ANY,
    "sentence_transformers": optional(Key(lambda value: isinstance(value, dict), "an object")),
    "sbert_ce_default_activation_function": optional(TEXT),
}
_SIZES: Table = dict.fromkeys(
    ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings"), SIZE
) | {"num_hidden_layers": _LAYERS, "hidden_act": TEXT}
_BERT: Table = {
    **_SIZES,
    "type_vocab_size": SIZE,
    "layer_norm_eps": _EPSILON,
    **unused(
        "directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type"
    ),
}
_T5: Table = {
    **dict.fromkeys(("vocab_size", "d_model", "d_kv", "d_ff", "num_heads"), SIZE),
    "num_layers": _LAYERS,
    "relative_attention_num_buckets": integer(4, 511),
    "relative_attention_max_distance": integer(1, 2**16),
    "layer_norm_epsilon": _EPSILON,
    "feed_forward_proj": TEXT,
    # transformers derives the first two from feed_forward_proj.
    **unused(
        "dense_act_fn is_gated_act num_decoder_layers dropout_rate scale_decoder_outputs n_positions "
        "intermediate_size max_position_embeddings"
    ),
}
_ROTARY: Table = {
    **_SIZES,
    "rope_theta": optional(number(0, above=True)),
    "rope_scaling": ANY,
    "rope_parameters": ANY,
}
_LLAMA: Table = {
    **_ROTARY,
    "num_key_value_heads": optional(SIZE),
    "head_dim": _HEAD_SIZE,
    "rms_norm_eps": _EPSILON,
    "attention_bias": FLAG,
    **unused("pretraining_tp max_window_layers"),
}
_CAUSAL: Table = {**_LLAMA, "is_causal": FLAG, "token_classification_bias": FLAG}
_QWEN: Table = {**_CAUSAL, "use_sliding_window": FLAG, "sliding_window": ANY, "layer_types": ANY}
_POST: Table = {
    **_ROTARY,
    "type_vocab_size": integer(0, 2**31 - 1),
    "layer_norm_eps": _EPSILON,
    "head_dim": _HEAD_SIZE,
}

NOMIC_NAMES = {
    **{"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"},
    **{"n_inner": "intermediate_size", "n_positions": "max_position_embeddings"},
    **{"layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta", "activation_function": "hidden_act"},
}
"""The keys of Nomic's configuration as its authors publish it, and transformers' names."""

_NOMIC: Table = {
    **_POST,
    **dict.fromkeys(
        ("causal", "prenorm", "parallel_block", "parallel_block_tied_norm", "rotary_emb_interleaved", "use_rms_norm"),
        only(False, None),
    ),
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "scale_attn_by_inverse_layer_idx"), only(False)),
    "rotary_emb_fraction": only(1.0, 1),
    "rotary_emb_scale_base": only(None),
    "rotary_scaling_factor": only(None),
    "scale_attn_weights": only(True),
    "reorder_and_upcast_attn": ANY,
    "moe_every_n_layers": only(0, None),
    "num_experts": only(0, None),
    **unused(
        "attn_pdrop embd_pdrop resid_pdrop dense_seq_output fused_bias_fc fused_dropout_add_ln max_trained_positions "
        "pad_vocab_size_multiple summary_activation summary_first_dropout summary_proj_to_labels summary_type "
        "summary_use_proj use_flash_attn use_xentropy"
    ),
}

TABLES: Mapping[str, Table] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), _BERT),
    "jina-bert": {
        **_BERT,
        "feed_forward_type": TEXT,
        **unused("emb_pooler attn_implementation"),
    },
    "distilbert": {
        **dict.fromkeys(("vocab_size", "dim", "n_heads", "hidden_dim", "max_position_embeddings"), SIZE),
        "n_layers": _LAYERS,
        "activation": TEXT,
        "layer_norm_eps": only(1e-12),  # transformers does not read it
        **unused(
            "sinusoidal_pos_embds dropout qa_dropout seq_classif_dropout output_past tie_weights_ intermediate_size"
        ),
    },
    "electra": {
        **_BERT,
        "embedding_size": SIZE,
        **unused("summary_type summary_use_proj summary_activation summary_last_dropout"),
    },
    "albert": {
        **_BERT,
        "embedding_size": SIZE,
        "num_hidden_groups": _LAYERS,
        "inner_group_num": _LAYERS,
        **unused("down_scale_factor gap_size net_structure_type num_memory_blocks layers_to_keep"),
    },
    "mpnet": {
        **{key: rule for key, rule in _BERT.items() if key != "type_vocab_size"},
        "relative_attention_num_buckets": integer(32, 511),  # the size of a table, of which 32 rows are read
    },
    "deberta-v2": {
        **_BERT,
        "max_position_embeddings": integer(1, 2**16),
        "type_vocab_size": integer(0, 2**31 - 1),
        "relative_attention": FLAG,
        "max_relative_positions": _DISTANCE,
        "position_buckets": _DISTANCE,
        "norm_rel_ebd": TEXT,
        "share_att_key": FLAG,
        "position_biased_input": FLAG,
        "pos_att_type": optional(
            Key(lambda value: TEXT.accepts(value) or items(str).accepts(value), "a list of names")
        ),
        "pooler_hidden_act": TEXT,
        "pooler_hidden_size": SIZE,
        "conv_kernel_size": ANY,
        "conv_act": ANY,
        "conv_groups": ANY,
        "embedding_size": optional(SIZE),
        "legacy": ANY,  # which head for masked words
        "pooler_dropout": ANY,
    },
    "t5": _T5,
    "mt5": _T5,
    "modernbert": {
        **{key: rule for key, rule in _ROTARY.items() if key not in ("hidden_act", "rope_theta")},
        "hidden_activation": TEXT,
        "norm_eps": _EPSILON,
        "norm_bias": FLAG,
        "attention_bias": FLAG,
        "mlp_bias": FLAG,
        "layer_types": ANY,
        "global_attn_every_n_layers": SIZE,
        "local_attention": SIZE,
        "global_rope_theta": number(0, above=True),
        "local_rope_theta": optional(number(0, above=True)),
        "layer_norm_eps": ANY,  # transformers reads norm_eps
        **dict.fromkeys(("decoder_bias", "classifier_bias"), FLAG),
        **dict.fromkeys(("classifier_pooling", "classifier_activation"), TEXT),
        **unused(
            "initializer_cutoff_factor embedding_dropout mlp_dropout deterministic_flash_attn sparse_prediction "
            "sparse_pred_ignore_index reference_compile repad_logits_with_grad"
        ),
    },
    "eurobert": {**_LLAMA, "mlp_bias": FLAG, **dict.fromkeys(("classifier_pooling", "clf_pooling"), TEXT)},
    "qwen3": _QWEN,
    "qwen2": _QWEN,
    "llama": {**_CAUSAL, "mlp_bias": FLAG},
    "mistral": {**_CAUSAL, "sliding_window": optional(SIZE)},
    "gemma3_text": {
        **{key: rule for key, rule in _LLAMA.items() if key != "hidden_act"},
        "hidden_activation": TEXT,
        "layer_types": ANY,
        "query_pre_attn_scalar": optional(number(0, above=True)),
        "sliding_window": SIZE,
        "sliding_window_pattern": SIZE,
        "_sliding_window_pattern": SIZE,
        "rope_local_base_freq": number(0, above=True),
        "attn_logit_softcapping": ANY,
        "use_bidirectional_attention": FLAG,
        **unused("final_logit_softcapping cache_implementation"),
    },
    "nomic_bert": _NOMIC,
    "gte": _POST,
    "new": {  # GTE as its authors publish it
        **_POST,
        "layer_norm_type": only("layer_norm"),
        "position_embedding_type": only("rope"),
        "pack_qkv": only(True),
        **dict.fromkeys(("logn_attention_scale", "logn_attention_clip1"), only(False)),
        **unused("unpad_inputs use_memory_efficient_attention"),
    },
    "jina_embeddings_v3": _POST,
}
"""The keys of ``config.json`` by ``model_type``, beside those that every configuration may have."""

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mt5": {"feed_forward_proj": "gated-gelu"},
    "gemma3_text": {"head_dim": 256, "num_key_value_heads": 4, "pad_token_id": 0},
    "qwen3": {"head_dim": 128, "num_key_value_heads": 32},
    "qwen2": {"num_key_value_heads": 32},
    "mistral": {"num_key_value_heads": 8},
}
"""transformers' defaults of keys that are absent, where they differ from those of other kinds with the same table."""

_OWN_CODE = {
    "jina-bert": ("JinaBert",),
    "nomic_bert": ("NomicBert",),
    "eurobert": ("EuroBert",),
    "gte": ("New", "Gte"),
    "new": ("New",),
    "jina_embeddings_v3": ("JinaEmbeddingsV3",),
}
"""The kinds that isorun builds as the code beside their weights does, and how the names of its classes begin."""


def read(folder: Path) -> Mapping[str, Any]:
    """The content of a checkpoint's ``config.json``.

    Raises:
        InvalidModel: there is none, or it is damaged.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise InvalidModel(f"{folder} is not a checkpoint: it has no config.json")
    return read_object(inside(folder, path.name))


def check_config(settings: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """Account for every key of ``config.json``.

    Args:
        settings: the content.
        kind: a key of :data:`TABLES`.
        name: of the file, for messages.

    Returns:
        The settings by transformers' names, with the defaults that only this kind has.

    Raises:
        InvalidModel: a value has no meaning.
        UnsupportedModel: a key, a value or code that isorun does not support.
    """
    if kind == "nomic_bert":
        settings = _by_transformers_names(settings, name)
    check(settings, {**_COMMON, **TABLES[kind]}, name)
    _check_code(settings.get("auto_map"), kind, name)
    return {**_DEFAULTS.get(kind, {}), **settings}


def _by_transformers_names(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    renamed = dict(settings)
    for published, standard in NOMIC_NAMES.items():
        if published not in renamed:
            continue
        value = renamed.pop(published)
        if published == "activation_function":
            if value != "swiglu":
                raise UnsupportedModel(f"{name}: activation_function must be 'swiglu', got {shown(value)}")
            value = "silu"
        if renamed.setdefault(standard, value) != value:
            raise UnsupportedModel(
                f"{name}: {published} is {shown(value)}, but {standard} is {shown(renamed[standard])}. Remove one"
            )
    return renamed


def _check_code(code: object, kind: str, name: str) -> None:
    """Reject a model that is computed by code beside its weights, unless isorun implements that code."""
    if code is None or code == {}:
        return
    own = _OWN_CODE.get(kind, ())
    for value in code.values() if isinstance(code, dict) else [code]:
        if not isinstance(value, str) or not value.rpartition(".")[2].startswith(own):
            raise UnsupportedModel(
                f"{name}: auto_map names remote code, {shown(value)}, which isorun does not run. Export the model to "
                "ONNX; if its layers are those of transformers, remove auto_map"
            )
