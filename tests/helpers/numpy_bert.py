"""BERT in NumPy, from the formulas of its paper (Devlin et al., 2019) and of the Transformer's (Vaswani et al., 2017).

In float64, one head at a time, with no thought of speed. It shares no code with isorun: it is what isorun's
graphs are held to.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_MASKED = -3.3895313892515355e38  # so low that a masked key counts for nothing wherever another one is left


def run(
    config: Mapping[str, Any], weights: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray], head: str = ""
) -> dict[str, np.ndarray]:
    """Every output of a BERT, by the names that isorun gives them, float64."""
    weight = {name: array.astype(np.float64) for name, array in weights.items()}
    epsilon = config["layer_norm_eps"]

    def dense(name: str, x: np.ndarray) -> np.ndarray:
        return x @ weight[f"{name}.weight"].T + weight[f"{name}.bias"]

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        """Ba et al., 2016: (x - mean) / sqrt(variance + epsilon) * gain + bias, over the last axis."""
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        gain, bias = weight[f"{name}.LayerNorm.weight"], weight[f"{name}.LayerNorm.bias"]
        return (x - mean) / np.sqrt(variance + epsilon) * gain + bias

    ids, mask, types = feeds["input_ids"], feeds["attention_mask"], feeds["token_type_ids"]
    hidden = norm(
        "embeddings",
        weight["embeddings.word_embeddings.weight"][ids]
        + weight["embeddings.position_embeddings.weight"][np.arange(ids.shape[1])]
        + weight["embeddings.token_type_embeddings.weight"][types],
    )
    heads = config["num_attention_heads"]
    size = config["hidden_size"] // heads
    for index in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        query, key, value = (dense(f"{layer}.attention.self.{part}", hidden) for part in ("query", "key", "value"))
        context = np.empty_like(hidden)
        for number in range(heads):
            part = slice(number * size, (number + 1) * size)
            context[..., part] = _attend(query[..., part], key[..., part], value[..., part], mask)
        attended = dense(f"{layer}.attention.output.dense", context)
        hidden = norm(f"{layer}.attention.output", attended + hidden)
        widened = _ACTIVATIONS[config["hidden_act"]](dense(f"{layer}.intermediate.dense", hidden))
        hidden = norm(f"{layer}.output", dense(f"{layer}.output.dense", widened) + hidden)

    outputs = {"last_hidden_state": hidden}
    if "pooler.dense.weight" in weight:
        outputs["pooler_output"] = np.tanh(dense("pooler.dense", hidden[:, 0]))
    if head == "sequence":
        outputs["logits"] = dense("classifier", outputs["pooler_output"])
    elif head == "token":
        outputs["logits"] = dense("classifier", hidden)
    elif head == "question":
        both = dense("qa_outputs", hidden)
        outputs["start_logits"], outputs["end_logits"] = both[..., 0], both[..., 1]
    return outputs


def _attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """softmax(Q K^T / sqrt(d)) V over the keys that the mask leaves; over all alike where it leaves none."""
    scores = query @ key.swapaxes(1, 2) / math.sqrt(query.shape[-1])
    scores = np.where(mask[:, None, :] != 0, scores, _MASKED)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ value


def _gelu(x: np.ndarray) -> np.ndarray:
    """x times the share of a normal distribution below x (Hendrycks and Gimpel, 2016)."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The same paper's approximation of it."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_ACTIVATIONS = {
    "gelu": _gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
}
