"""The last layer for one position alone, if the graph reads only that position of the encoder.

A classifier or a pooler reads the first token. The last layer still needs the keys and values of every token; its
queries, and everything after them, are needed for one position of each row. The product with the weights of Q, K and V
becomes one with those of Q, for that position, and one with those of K and V. Skip connections, the feed-forward layer
and other nodes that process each token alike follow for that position.

Of the 12 H^2 weights of a layer (H is the hidden size, 4 H the inner size), 2 H^2 are still multiplied for every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.graph.analysis import tokens
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.ops import functions


def narrow(model: ir.Model) -> bool:
    """Rewrite a model in the fused form, in place, if it reads one position alone.

    Returns:
        Whether it was rewritten. It stays as it is if more is read, for example by an output of the graph.
    """
    last = _find(model.graph)
    if last is None:
        return False
    _rewrite(last)
    common.RemoveUnusedNodesPass()(model)
    functions.carry(model)
    return True


@dataclass(frozen=True)
class _Last:
    """The last layer.

    Attributes:
        attention: its attention.
        after: the nodes that follow it and process each token alike, in order.
        others: the values of tokens that are computed before the attention.
        reads: the nodes that read the position.
        position: its number.
    """

    attention: ir.Node
    after: Sequence[ir.Node]
    others: frozenset[ir.Value]
    reads: Sequence[ir.Node]
    position: int


def _find(graph: ir.Graph) -> _Last | None:
    attention = next((node for node in reversed(graph) if functions.is_fused(node, functions.ATTENTION)), None)
    if attention is None or not _is_plain(attention):
        return None
    ranks: dict[ir.Value, int] = {}
    behind = set(attention.outputs)
    after: list[ir.Node] = []
    reads: list[ir.Node] = []
    positions: set[int] = set()
    for node in graph:
        if functions.is_fused(node, *functions.EMBEDDINGS) or (
            functions.is_fused(node, functions.ATTENTION) and node.inputs[0] in ranks
        ):
            ranks[node.outputs[0]] = 3
            continue
        if not any(value in ranks for value in node.inputs):
            continue
        rank = tokens.rank_by_token(node, ranks)
        if rank is not None:
            ranks.update(dict.fromkeys(node.outputs, rank))
        if behind.isdisjoint(node.inputs):
            continue
        if rank is not None:
            after.append(node)
            behind.update(node.outputs)
        elif node.inputs[0] in behind and (read := tokens.positions_read(node, ranks[node.inputs[0]])):
            if node.op_type == "Slice" and read != [0]:  # empty in shorter rows
                return None
            reads.append(node)
            positions.update(read)
        else:
            return None
    readers = {use.node for value in behind for use in value.uses()}  # those in graphs of their own (If, Loop) too
    if attention.outputs[0] not in ranks or len(positions) != 1 or not behind.isdisjoint(graph.outputs):
        return None
    if not readers.issubset((*after, *reads)):
        return None
    return _Last(attention, after, frozenset(ranks.keys() - behind), reads, positions.pop())


def _is_plain(attention: ir.Node) -> bool:
    """Whether an attention has no more than a bias on its scores, and constant weights."""
    inputs = functions.inputs(attention)
    weights = [inputs[name] for name in ("qkv_weight", "qkv_bias") if name in inputs]
    return (
        inputs.keys() <= {"hidden", "key_mask", "qkv_weight", "qkv_bias", "bias"}
        and attention.attributes.keys() <= {"num_heads", "guarded", "mask_filter_value"}
        and all(tokens.constant(weight) is not None for weight in weights)
    )


def _rewrite(last: _Last) -> None:
    read: dict[ir.Value, ir.Value] = {}  # each of the other values at the position, (B, 1, ...)

    def at_position(value: ir.Value, reader: ir.Node) -> ir.Value:
        if value not in read:
            read[value] = subgraph.Before(reader)("Gather", value, [last.position], axis=1)
        return read[value]

    _attend(last, at_position(needed(last.attention.inputs[0]), last.attention))
    for node in last.after:
        for index, value in enumerate(node.inputs):
            if value is not None and value in last.others:
                node.replace_input_with(index, at_position(value, node))
        for value in node.outputs:
            value.shape = None
    for node in last.reads:
        if node.op_type == "Slice":
            subgraph.replace(node.outputs[0], needed(node.inputs[0]))
        else:
            first = np.zeros(needed(tokens.constant(node.inputs[1])).shape.numpy(), int)
            node.replace_input_with(1, subgraph.Before(node).integers(first.tolist()))


def _attend(last: _Last, query: ir.Value) -> None:
    """The attention of the hidden states at the position, (B, 1, H), to those of all tokens."""
    node, op = last.attention, subgraph.Before(last.attention)
    hidden, mask, weight, bias, *on_scores = [*node.inputs] if len(node.inputs) > 3 else [*node.inputs, None]

    third = needed(tokens.constant(weight)).shape.numpy()[-1] // 3

    def dense(value: ir.Value, *thirds: int) -> ir.Value:
        columns = [third * number for number in thirds]
        own_bias = None if bias is None else op.columns(bias, *columns)
        return op.dense(value, op.columns(needed(weight), *columns), own_bias)

    key_value = op.several(2, "Split", dense(needed(hidden), 1, 3), axis=-1)
    biases = [op("Gather", value, [last.position], axis=2) for value in on_scores if value is not None]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    context = node.outputs[0]
    inputs = [dense(query, 0, 1), *key_value, mask, *biases]
    context.shape = None
    subgraph.put(functions.SINGLE_QUERY, inputs, attributes, context)
