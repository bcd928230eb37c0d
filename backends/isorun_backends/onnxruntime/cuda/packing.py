"""A graph whose padding is removed, with its attention by ``com.microsoft.PackedMultiHeadAttention``.

As it is lowered, such a graph finds its tokens by itself and pads them again for the attention core, in four groups of
rows. That is right for every mask, and slow to start on a GPU: three layers are 200 launches, the host waits five times
for a number out of them, and a CUDA graph cannot hold that. Here the attention takes tokens side by side, and where
they are comes with the feeds: the host has the mask, and finds them in it with NumPy. Three layers are 50 launches,
without a wait. (Counted in ONNX Runtime 1.31.1's CUDA provider, over stand-ins for CUDA's libraries.)

The kernel takes every token of a row for a query and for a key. So it is right where each position that the graph reads
by its number, the first for a pooler, is a key in every row; other masks take the graph as it is lowered. T is at most
B S, or the kernel refuses it. In fp16, from compute capability 8.0 on, it is flash attention. In fp32 it pads rows
again, for plain products, and waits once for each layer to check where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isorun_backends.onnxruntime import protos

if TYPE_CHECKING:
    import onnx

KEPT = "padding.kept"
_FOUND = {KEPT: np.int64, "padding.rows": np.int64, "padding.places": np.int64}  # as graph/padding.onnxtxt says
_POSITIONS, _OFFSET, _CUMULATIVE = "isorun.positions", "isorun.token_offset", "isorun.cumulative_sequence_length"
_ADDED = {_POSITIONS: np.int32, _OFFSET: np.int32, _CUMULATIVE: np.int32}
_GROUPS = 4
_STEP, _MOST_STEPS = 16, 32
_BIAS = 5  # input of com.microsoft.MultiHeadAttention
_PLACES = 8  # input of com.microsoft.EmbedLayerNormalization
_HANDED_ON = ("Cast", "Unsqueeze", "Identity", "Gather", "Reshape", "Expand")


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
        """Where the tokens are, for a mask that is allowed: the inputs that the packed graph has more.

        T is rounded up by tokens that nothing reads, to one of at most 32 numbers for a batch's shape, so that CUDA
        graphs are met again.
        """
        width = mask.shape[1]
        real = mask != 0
        found = np.flatnonzero(real)
        step = _STEP * -(-mask.size // (_STEP * _MOST_STEPS))
        total = min(-(-found.size // step) * step, mask.size)
        kept = np.zeros((1, total), np.int64)
        kept[0, : found.size] = found
        counts = real.sum(axis=1)
        rows = np.cumsum(real).reshape(mask.shape) - 1
        inside = np.arange(width) < counts[:, None]
        # By this the kernel pads rows again where it has no better way: every place once, those of tokens first.
        offset = np.concatenate((np.flatnonzero(inside), np.flatnonzero(~inside)))
        return {
            KEPT: kept,
            "padding.rows": rows,
            "padding.places": np.where(real, rows, total),
            _POSITIONS: (kept % width).astype(np.int32),
            _OFFSET: offset.astype(np.int32).reshape(mask.shape),
            _CUMULATIVE: np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        }


def is_packed(graph: onnx.GraphProto) -> bool:
    """Whether a lowered graph works on tokens side by side."""
    return any(KEPT in node.output for node in graph.node)


def pack(graph: onnx.GraphProto) -> Packing:
    """Have such a graph take its tokens' places as inputs, and its attention by one kernel, in place.

    Raises:
        CannotPack: it computes its mask, or its attention has a bias. The graph is as it was.
    """
    makers = protos.producers(graph)
    packing = Packing(_mask(graph, makers), _read(makers))
    layers = _layers(graph, makers)
    for node, qkv, heads in layers:
        _attend(graph, node, qkv, heads)
    made = [node for node in graph.node if not any(name in _FOUND for name in node.output)]
    del graph.node[:]
    graph.node.extend(made)
    for node in graph.node:
        if protos.is_contrib(node, "EmbedLayerNormalization") and protos.counts_from_zero(
            graph, protos.input_of(node, _PLACES), _HANDED_ON
        ):
            node.input[_PLACES] = _POSITIONS
    protos.drop_unused(graph)
    _add_inputs(graph, packing.mask)
    return packing


def _mask(graph: onnx.GraphProto, makers: Mapping[str, onnx.NodeProto]) -> str:
    """The graph's input with 0 for padding: what the tokens' rows have their shape of."""
    shape = makers[makers["padding.rows"].input[1]]
    mask = protos.source(graph, shape.input[0])
    if mask is None:
        raise CannotPack(f"its mask {shape.input[0]!r} is not one of its inputs")
    return mask


def _read(makers: Mapping[str, onnx.NodeProto]) -> tuple[int, ...]:
    """The positions that are kept whatever the mask: kept = ... Or (..., wanted by ... Equal (numbers, positions))."""

    def before(node: onnx.NodeProto, operator: str, index: int = 0) -> onnx.NodeProto:
        node = makers[node.input[index]]
        while node.op_type != operator:
            node = makers[node.input[0]]
        return node

    (positions,) = before(before(before(makers[KEPT], "Or"), "Equal", 1), "Constant", 1).attribute
    return tuple(positions.ints)


def _layers(graph: onnx.GraphProto, makers: Mapping[str, onnx.NodeProto]) -> list[tuple[onnx.NodeProto, str, int]]:
    """For each attention, the node that gives its context (1, T, H), the value Q, K and V side by side, and how many
    heads. The last layer's, where it has one query for each row, is left as it is: its keys are in rows again."""
    found, cores = [], 0
    for node in graph.node:
        cores += protos.is_contrib(node, "MultiHeadAttention") and not _is_in_rows(node.input[1], makers)
        contexts = makers.get(node.input[0]) if node.op_type == "Gather" else None
        if contexts is None or contexts.op_type != "Concat" or len(contexts.input) != _GROUPS:
            continue
        flat = [maker for maker in map(makers.get, contexts.input) if maker is not None and maker.op_type == "Flatten"]
        groups = [maker for each in flat if (maker := makers.get(each.input[0])) is not None]
        if len(groups) != _GROUPS or not all(protos.is_contrib(each, "MultiHeadAttention") for each in groups):
            continue
        if any(protos.input_of(each, _BIAS) for each in groups):
            raise CannotPack("its layers add a bias to their scores")
        table = makers[makers[groups[0].input[0]].input[0]]
        found.append((node, table.input[0], next(a.i for a in groups[0].attribute if a.name == "num_heads")))
    if not found or cores != _GROUPS * len(found):
        raise CannotPack("its attention is not com.microsoft.MultiHeadAttention over groups of rows")
    return found


def _is_in_rows(value: str, makers: Mapping[str, onnx.NodeProto]) -> bool:
    maker = makers.get(value)
    return maker is not None and maker.op_type == "Gather" and maker.input[1] == "padding.rows"


def _attend(graph: onnx.GraphProto, node: onnx.NodeProto, qkv: str, heads: int) -> None:
    from onnx import helper

    name, context = f"{node.output[0]}.packed", node.output[0]
    axis = f"{name}.axis"
    parts = [f"{name}.query", f"{name}.key", f"{name}.value"]
    made = [
        protos.constant(axis, np.array([0], np.int64)),
        helper.make_node("Squeeze", [qkv, axis], [f"{name}.qkv"], f"{name}.qkv"),
        helper.make_node("Split", [f"{name}.qkv"], parts, f"{name}.parts", axis=-1),
        helper.make_node(
            "PackedMultiHeadAttention",
            [*parts, "", _OFFSET, _CUMULATIVE],
            [name],
            name,
            domain="com.microsoft",
            num_heads=heads,
        ),
        helper.make_node("Unsqueeze", [name, axis], [context], f"{name}.context"),
    ]
    protos.insert(graph, context, made)
    graph.node.remove(node)


def _add_inputs(graph: onnx.GraphProto, mask: str) -> None:
    """All of them, whether this graph reads them or not: the feeds are always the same. Their dimensions have names, by
    which ONNX Runtime sees that it may fuse an addition of two (1, T, H) with the normalization behind it."""
    from onnx import helper

    dimensions = next(each for each in graph.input if each.name == mask).type.tensor_type.shape.dim
    whole: list[int | str | None] = [each.dim_param or each.dim_value or None for each in dimensions]
    packed: list[int | str | None] = [1, "isorun.tokens"]
    row: list[int | str | None] = [None]
    shapes = {KEPT: packed, _POSITIONS: packed, _CUMULATIVE: row}
    for name, dtype in {**_FOUND, **_ADDED}.items():
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        graph.input.append(helper.make_tensor_value_info(name, kind, shapes.get(name, whole)))
