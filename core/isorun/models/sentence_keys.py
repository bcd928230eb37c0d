"""The keys of the files that sentence-transformers saves beside a model."""

from __future__ import annotations

from isorun.models.keys import (
    ANY,
    EMPTY,
    FLAG,
    OBJECT,
    SIZE,
    TEXT,
    TEXTS,
    Key,
    Table,
    integer,
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
_LOGITS = {"method": "forward", "method_output_name": "logits"}
_OUTPUTS = ("last_hidden_state", "logits")

MODULE: Table = {"idx": ANY, "name": ANY, "path": TEXT, "type": TEXT, "kwargs": EMPTY}
"""An object of ``modules.json``."""

MODEL: Table = {
    "prompts": optional(TEXTS),
    "default_prompt_name": optional(TEXT),
    "truncate_dim": optional(SIZE),
    "activation_fn": optional(TEXT),
    "model_type": only("SentenceTransformer", "CrossEncoder", "SparseEncoder", "MultiVectorEncoder", "ColBERT", None),
    "max_active_dims": optional(SIZE),
    **dict.fromkeys(("query_prefix", "document_prefix"), optional(TEXT)),  # these six: PyLate's
    **dict.fromkeys(("query_length", "document_length"), optional(SIZE)),
    **dict.fromkeys(("do_query_expansion", "attend_to_expansion_tokens"), optional(FLAG)),
    "skiplist_words": optional(items(str)),
    **unused("__version__ similarity_fn_name keep_in_fp32_modules requirements"),
}
"""``config_sentence_transformers.json``."""

TRANSFORMER: Table = {
    "max_seq_length": optional(SIZE),
    "do_lower_case": optional(FLAG),
    "transformer_task": only("feature-extraction", "sequence-classification", "fill-mask", "text-generation"),
    "modality_config": only(
        None,
        *({"text": {"method": "forward", "method_output_name": output}} for output in _OUTPUTS),
        {"text": _LOGITS, "message": {**_LOGITS, "format": "flat"}},
    ),
    "module_output_name": only("token_embeddings", "scores", "causal_logits", None),
    "unpad_inputs": ANY,  # a faster way to the same values
    "tokenizer_name_or_path": only(None),
    **dict.fromkeys(
        ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"), _ARGUMENTS
    ),
    "processing_kwargs": Key(
        lambda value: not value or (isinstance(value, dict) and set(value) <= {"chat_template"}),
        "empty, or an object with chat_template",
        True,
    ),
    **dict.fromkeys(("query_length", "document_length"), optional(SIZE)),
    "query_expansion": optional(OBJECT),
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

DROPOUT: Table = unused("dropout")

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
    **unused("embedding_dimension word_embedding_dimension chunk_size"),
}
"""The configuration of the pooling of a sparse encoder."""

EXPANSION: Table = {
    "strategy": Key(lambda value: value in ("fixed", "min"), "'fixed' or 'min'"),
    "attend": FLAG,
    "token": optional(TEXT),
    "length": SIZE,
}
"""``query_expansion`` of a transformer."""

MULTI_VECTOR_MASK: Table = {
    "skiplist_words": optional(items(str)),
    "skiplist_tasks": Key(
        lambda value: value is None or isinstance(value, str) or items(str).accepts(value), "a name or a list of names"
    ),
    "keep_only_token_ids": only(None),
}
"""The configuration of what scores the tokens of a multi-vector encoder."""

LATE_INTERACTION: Table = {
    **dict.fromkeys(("query_length", "document_length"), optional(SIZE)),
    "expansion": optional(OBJECT),
    **dict.fromkeys(("skiplist_words", "skiplist_tasks", "markers"), items(str)),
    "similarity": only("maxsim", "meanmaxsim"),
}
"""The same in the metadata of an ONNX file."""

STANFORD: Table = {
    **dict.fromkeys(("query_token_id", "doc_token_id"), TEXT),
    **dict.fromkeys(("query_maxlen", "doc_maxlen"), optional(SIZE)),
    **dict.fromkeys(("attend_to_mask_tokens", "mask_punctuation"), FLAG),
    "similarity": only("cosine"),
    "dim": SIZE,
}
"""What is read of ``artifact.metadata``, which also holds how the model was trained."""

CHAT_TEMPLATE: Table = {"add_generation_prompt": FLAG}
"""The arguments of a chat template in ``processing_kwargs``."""

_WORD = integer(0, 2**31 - 1)
LOGIT_SCORE: Table = {
    "true_token_id": _WORD,
    "false_token_id": optional(_WORD),
    "module_input_name": only("causal_logits"),
}
"""The configuration of what makes a score of the logits of two words."""

STATIC_SPARSE: Table = {"frozen": ANY, "path": only(None)}
"""The configuration of an inference-free sparse encoder."""

ROUTER: Table = {"types": TEXTS, "structure": OBJECT, "parameters": optional(OBJECT)}
"""``router_config.json``."""

ROUTER_PARAMETERS: Table = {
    "default_route": optional(TEXT),
    "allow_empty_key": FLAG,
    "route_mappings": optional(TEXTS),
}
