"""ONNX Runtime's own operators for ONNX's reference evaluator: those of a packed graph for CUDA, of which
``PackedMultiHeadAttention`` has no other implementation without a GPU. Written from ContribOperators.md and the
kernel's source, as strict as its strictest way."""

import math

import numpy as np
from onnx.reference.op_run import OpRun


class EmbedLayerNormalization(OpRun):
    op_domain = "com.microsoft"

    def _run(self, ids, types, word, position, segment, gamma, beta, mask=None, places=None, epsilon=None, **_):
        assert mask is None
        assert places is not None
        assert ids.dtype == places.dtype == np.int32
        tables = word[ids].astype(np.float32) + position[places] + (0 if types is None else segment[types])
        centered = tables - tables.mean(-1, keepdims=True)
        unit = centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + epsilon)
        return (unit * gamma + beta).astype(word.dtype), np.zeros(len(ids), np.int32)


class BiasGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x, bias):
        wide = x.astype(np.float64) + bias
        return ((0.5 * wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))).astype(x.dtype),)


class FastGelu(OpRun):
    op_domain = "com.microsoft"

    def _run(self, x, bias):
        wide = x.astype(np.float64) + bias
        angle = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        return ((0.5 * wide * (1 + np.tanh(angle))).astype(x.dtype),)


class PackedMultiHeadAttention(OpRun):
    op_domain = "com.microsoft"

    def _run(self, query, key, value, bias, token_offset, cumulative, attention_bias=None, num_heads=None, **_):
        assert bias is attention_bias is None
        assert query.ndim == 2
        assert query.shape == key.shape == value.shape
        assert token_offset.dtype == cumulative.dtype == np.int32
        batch, width = token_offset.shape
        tokens, hidden = query.shape
        assert tokens <= batch * width, "Packed attention token count T must not exceed B * S."
        assert cumulative.shape == (batch + 1,)
        assert sorted(token_offset.flat) == list(range(batch * width)), "the kernel would read what nothing wrote"
        context = np.full_like(query, np.nan)  # what flash attention leaves where no row is
        size = hidden // num_heads
        for row in range(batch):
            own = slice(cumulative[row], cumulative[row + 1])
            offsets = token_offset.flat[own]
            assert list(offsets) == list(range(row * width, row * width + len(offsets))), (
                "a row's keys come first in it"
            )
            q, k, v = (
                tensor[own].reshape(-1, num_heads, size).transpose(1, 0, 2).astype(np.float32)
                for tensor in (query, key, value)
            )
            scores = q @ k.transpose(0, 2, 1) / math.sqrt(size)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            by_head = weights / weights.sum(-1, keepdims=True) @ v
            context[own] = by_head.transpose(1, 0, 2).reshape(-1, hidden)
        return (context,)


class MultiHeadAttention(OpRun):
    op_domain = "com.microsoft"

    def _run(self, query, key, value, bias, mask, num_heads=None, mask_filter_value=None, **_):
        assert bias is None
        assert mask.dtype == np.int32
        assert mask.shape == key.shape[:2] == value.shape[:2]
        q, k, v = (
            tensor.reshape(*tensor.shape[:2], num_heads, -1).transpose(0, 2, 1, 3).astype(np.float32)
            for tensor in (query, key, value)
        )
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1])
        scores += np.where(mask, np.float32(0), np.float32(mask_filter_value))[:, None, None]
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        by_head = weights / weights.sum(-1, keepdims=True) @ v
        return (by_head.transpose(0, 2, 1, 3).reshape(query.shape).astype(query.dtype),)


OPERATORS = [EmbedLayerNormalization, BiasGelu, FastGelu, MultiHeadAttention, PackedMultiHeadAttention]
