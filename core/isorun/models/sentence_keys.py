"""The keys of the files that sentence-transformers saves beside a model."""

from __future__ import annotations

from isorun.models.keys import (
    ANY,
    EMPTY,
    FLAG,
    SIZE,
    TEXT,
    TEXTS,
    Key,
    Table,
    items,
    number,
    only,
    optional,
    unused,
)

_EITHER = only("sentence_embedding", "token_embeddings", None)
_ARGUMENTS = Key(
    lambda value: not value or (isinstance(value, dict) and value.keys() <= {"trust_remote_code"}), "empty", True
)
_OUTPUTS = ("last_hidden_state", "logits")

MODULE: Table = {"idx": ANY, "name": ANY, "path": TEXT, "type": TEXT, "kwargs": EMPTY}
"""An object of ``modules.json``."""

MODEL: Table = {
    "prompts": optional(TEXTS),
    "default_prompt_name": optional(TEXT),
    "truncate_dim": optional(SIZE),
    "activation_fn": optional(TEXT),
    "model_type": only("SentenceTransformer", "CrossEncoder", "SparseEncoder", None),
    "max_active_dims": optional(SIZE),
    **unused("__version__ similarity_fn_name keep_in_fp32_modules requirements"),
}
"""``config_sentence_transformers.json``."""

TRANSFORMER: Table = {
    "max_seq_length": optional(SIZE),
    "do_lower_case": optional(FLAG),
    "transformer_task": only("feature-extraction", "sequence-classification", "fill-mask"),
    "modality_config": only(
        None, *({"text": {"method": "forward", "method_output_name": output}} for output in _OUTPUTS)
    ),
    "module_output_name": only("token_embeddings", "scores", None),
    "unpad_inputs": ANY,  # a faster way to the same values
    "tokenizer_name_or_path": only(None),
    **dict.fromkeys(
        ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"), _ARGUMENTS
    ),
    **dict.fromkeys(("processing_kwargs", "query_length", "document_length", "query_expansion"), EMPTY),
}
"""``sentence_bert_config.json``."""

OLD_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The keys by which sentence-transformers named poolings before version 6."""

POOLING: Table = {
    **unused("embedding_dimension word_embedding_dimension"),
    "pooling_mode": Key(
        lambda value: (
            isinstance(value, str)
            or (isinstance(value, list) and 0 < len(value) <= 16 and all(isinstance(mode, str) for mode in value))
        ),
        "a name or a list of names",
    ),
    **dict.fromkeys(OLD_POOLINGS, optional(FLAG)),
    "include_prompt": FLAG,
}
"""The configuration of a pooling."""

NORMALIZE: Table = dict.fromkeys(("module_input_name", "module_output_name"), _EITHER)

DENSE: Table = {
    "in_features": SIZE,
    "out_features": SIZE,
    "bias": FLAG,
    "activation_function": TEXT,
    "module_input_name": _EITHER,
    "module_output_name": _EITHER,
    "use_residual": optional(FLAG),
}
"""The configuration of a dense layer."""

LAYER_NORM: Table = {"dimension": SIZE}

WORD_WEIGHTS: Table = {
    "vocab": items(str, maximum=2_000_000),
    "word_weights": Key(
        lambda value: isinstance(value, dict) and all(number().accepts(weight) for weight in value.values()),
        "an object of numbers",
    ),
    "unknown_word_weight": number(),
}

SPLADE: Table = {
    "pooling_strategy": only("max", "sum"),
    "activation_function": only("relu", "log1p_relu"),
    **unused("embedding_dimension word_embedding_dimension"),
}
"""The configuration of the pooling of a sparse encoder."""

STATIC_SPARSE: Table = {"frozen": ANY, "path": only(None)}
"""The configuration of an inference-free sparse encoder."""

_OBJECT = Key(lambda value: isinstance(value, dict), "an object")
ROUTER: Table = {"types": TEXTS, "structure": _OBJECT, "parameters": optional(_OBJECT)}
"""``router_config.json``."""

ROUTER_PARAMETERS: Table = {
    "default_route": optional(TEXT),
    "allow_empty_key": FLAG,
    "route_mappings": optional(TEXTS),
}
