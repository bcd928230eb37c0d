"""A graph whose padding is removed, with its attention by ``com.microsoft.PackedMultiHeadAttention``.

In any dialect, such a graph finds its tokens by itself and pads them again for the attention core, in four groups of
rows. That is right for every mask, and slow to start on a GPU: three layers are 200 launches, the host waits five times
for a number out of them, and a CUDA graph cannot hold that. Here the attention takes tokens side by side, and where
they are comes with the feeds: the host has the mask, and finds them in it with NumPy. Three layers are 50 launches,
without a wait. (Counted in ONNX Runtime 1.31.1's CUDA provider, over stand-ins for CUDA's libraries.)

The kernel takes every token of a row for a query and for a key. So it is right where each position that the graph reads
by its number, the first for a pooler, is a key in every row; other masks take the plain form. T is at most B S, or the
kernel rejects it. In fp16, from compute capability 8.0 on, it is flash attention. In fp32 it pads rows again, for plain
products, and waits once for each layer to check where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

KEPT = "padding.kept"
_ROWS, _PLACES = "padding.rows", "padding.places"
_POSITIONS, _OFFSET, _CUMULATIVE = "padding.kept_positions", "padding.token_offset", "padding.cumulative_length"
_FINDS = "PackedPlaces"  # the fused operator that finds the tokens; its first outputs are these
_FOUND = (KEPT, _ROWS, _PLACES)
_ATTENTION = "PackedKernelAttention"  # what dialects/packed.onnxtxt has in the place of PackedAttention
_BIASES = 12  # where the biases begin among the inputs of PackedAttention
_GROUPS = 4  # of rows: a bias for each
_STEP, _MOST_STEPS = 16, 32


class CannotPack(Exception):
    """The graph has no packed form; the message says why."""


@dataclass(frozen=True, slots=True)
class Packing:
    """What a packed graph needs of a mask.

    Attributes:
        mask: the graph's input that it is made from.
        read: the positions that the graph reads by their numbers, 0 among them.
    """

    mask: str
    read: tuple[int, ...]

    def allows(self, mask: np.ndarray) -> bool:
        """Whether the kernel is right for a mask (B, S)."""
        read = [position for position in self.read if position < mask.shape[1]]
        return mask.size > 0 and bool((mask[:, read] != 0).all())

    def places(self, mask: np.ndarray) -> dict[str, np.ndarray]:
        """Where the tokens are, for a mask that is allowed: the additional inputs of the packed graph.

        T is rounded up by tokens that nothing reads, to one of at most 32 numbers for a batch's shape, so that CUDA
        graphs are reused.
        """
        width = mask.shape[1]
        real = mask != 0
        real_tokens = np.flatnonzero(real)
        step = _STEP * -(-mask.size // (_STEP * _MOST_STEPS))
        total = min(-(-real_tokens.size // step) * step, mask.size)
        kept = np.zeros((1, total), np.int64)
        kept[0, : real_tokens.size] = real_tokens
        counts = real.sum(axis=1)
        rows = np.cumsum(real).reshape(mask.shape) - 1
        inside = np.arange(width) < counts[:, None]
        # By this the kernel pads rows again where it has no better way: every place once, those of tokens first.
        offset = np.concatenate((np.flatnonzero(inside), np.flatnonzero(~inside)))
        return {
            KEPT: kept,
            _ROWS: rows,
            _PLACES: np.where(real, rows, total),
            _POSITIONS: (kept % width).astype(np.int32),
            _OFFSET: offset.astype(np.int32).reshape(mask.shape),
            _CUMULATIVE: np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        }


def is_packed(model: ir.Model) -> bool:
    """Whether a model in the fused form works on tokens side by side."""
    return any(node.op_type == _FINDS for node in model.graph)


def pack(model: ir.Model, *, in_order: Sequence[ir.Node]) -> Packing:
    """Have such a model take its tokens' places as inputs, and its attention by one kernel, in place.

    Args:
        model: in the fused form.
        in_order: its embeddings whose positions are 0, 1, 2 and so on.

    Raises:
        CannotPack: it computes its mask, or its attention has a bias. The model is as it was.
    """
    import onnx_ir as ir

    from isorun.plugin import fused

    finds = next(node for node in model.graph if node.op_type == _FINDS)
    key_mask = finds.inputs[0]
    assert key_mask is not None
    mask = fused.source(key_mask)
    if not mask.is_graph_input():
        raise CannotPack(f"its mask {mask.name!r} is not one of its inputs")
    layers = [node for node in model.graph if fused.is_fused(node, fused.PACKED)]
    if any(value is not None for node in layers for value in node.inputs[_BIASES : _BIASES + _GROUPS]):
        raise CannotPack("its layers add a bias to their scores")
    known = {"num_heads", "mask_filter_value"}
    if any(len(node.inputs) > _BIASES + _GROUPS or node.attributes.keys() - known for node in layers):
        raise CannotPack("its attention has features that the kernel lacks")
    if not layers or any(fused.is_fused(node, fused.CORE) for node in model.graph):
        raise CannotPack("its attention is not over tokens side by side")

    # Every place is an input, read or not: the feeds are always the same. Dimensions have names, by which ONNX Runtime
    # sees that it may fuse an addition of two (1, T, H) with the normalization behind it.
    packed, whole, row = ir.Shape([1, "isorun.tokens"]), mask.shape, ir.Shape([None])
    shapes = {KEPT: packed, _POSITIONS: packed, _CUMULATIVE: row}
    places = {}
    for name in (*_FOUND, _POSITIONS, _OFFSET, _CUMULATIVE):
        dtype = ir.DataType.INT64 if name in _FOUND else ir.DataType.INT32
        places[name] = ir.Value(name=name, type=ir.TensorType(dtype), shape=shapes.get(name, whole))
        model.graph.inputs.append(places[name])
    for name, value in zip(_FOUND, finds.outputs, strict=False):
        value.replace_all_uses_with(places[name])
        value.name = f"{name}.computed"
    for node in in_order:
        node.replace_input_with(fused.TABLES.at, places[_POSITIONS])
    for node in layers:
        attributes = {"num_heads": node.attributes["num_heads"].as_int()}
        inputs = [node.inputs[0], places[_OFFSET], places[_CUMULATIVE]]
        kernel = ir.node(_ATTENTION, inputs, attributes, domain=fused.DOMAIN, name=node.name)
        model.graph.insert_before(node, kernel)
        context, old = kernel.outputs[0], node.outputs[0]
        context.shape, context.type, context.name, old.name = old.shape, old.type, old.name, None
        old.replace_all_uses_with(context)
        model.graph.remove(node, safe=True)
    model.graph.remove(finds, safe=True)
    return Packing(mask.name or "", tuple(finds.attributes["positions"].as_ints()))
