"""Detection of the mask input and of the token-level outputs.

In the fused form, both follow from the graph: the mask is the key mask of every attention, and an output is token-level
if all operators between it and an attention or embedding process tokens independently.

Without a fused attention, names decide: the mask is the input ``attention_mask``, if it has two dimensions, and the
token-level outputs are those whose first two dimensions have the same names or sizes as the mask's.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from isorun.graph.analysis import tokens
from isorun.graph.analysis.evaluate import ancestors, data_inputs
from isorun.graph.ops import functions

_OF_MASKS = frozenset(("Cast", "Expand", "Identity", "Mul", "Not", "Reshape", "Unsqueeze"))
_CONVENTIONAL_NAME = "attention_mask"
_COUNTING = frozenset(("ArgMax", "ArgMin", "CumSum", "ReduceL1", "ReduceMean", "ReduceSum"))


def key_masks(graph: ir.Graph) -> set[ir.Value | None]:
    """The key masks of the fused attentions; ``None`` among them for an attention without a mask."""
    attentions = (node for node in graph if functions.is_fused(node, *functions.ATTENTIONS))
    return {functions.inputs(node).get("key_mask") for node in attentions}


def mask_inputs(graph: ir.Graph) -> list[str]:
    """The inputs, other than booleans, that fused attentions use as key masks, possibly cast."""
    sources = set()
    for node in graph:
        if functions.is_fused(node, *functions.ATTENTIONS):
            inputs = functions.inputs(node)
            pairs = inputs.get("pairs")
            sources |= {_source(inputs["key_mask"])[0]} if pairs is None else {*ancestors(pairs, through=_OF_MASKS)}
    return [value.name or "" for value in graph.inputs if value in sources and value.dtype != ir.DataType.BOOL]


def counting(mask: ir.Value) -> ir.Node | None:
    """The node by which a mask depends on a number of tokens and not on each token alone, if there is one."""
    nodes = (node for value in ancestors(mask) if (node := value.producer()) is not None)
    return next((node for node in nodes if node.op_type in _COUNTING and data_inputs(node.outputs[0])), None)


class MaskInput(NamedTuple):
    """``ModelInfo.mask``, ``ModelInfo.marks_padding`` and ``ModelInfo.token_outputs`` of a graph."""

    name: str | None = None
    marks_padding: bool = False
    token_outputs: tuple[str, ...] | None = None


def find(graph: ir.Graph) -> MaskInput:
    """The mask input of a graph."""
    masks = key_masks(graph)
    if not masks:
        return _by_name(graph)
    sources = {None if mask is None else _source(mask) for mask in masks}
    source = sources.pop()
    if sources or source is None or not source[0].is_graph_input():
        return MaskInput()
    by_token = _by_token(graph)
    token_outputs = tuple(value.name for value in graph.outputs if value in by_token and value.name)
    return MaskInput(source[0].name, source[1], token_outputs)


def _source(mask: ir.Value) -> tuple[ir.Value, bool]:
    """What a mask is computed from, and whether it is inverted. Of a flattened input of multiple choice, the input."""
    origin, inverted = tokens.origin(mask)
    return tokens.flattened_input(origin) or origin, inverted


def _by_token(graph: ir.Graph) -> dict[ir.Value, int]:
    """The token-level values (B, S, ...), with their ranks, as far as the operators are known."""
    ranks: dict[ir.Value, int] = {}
    for node in graph:
        if not functions.is_fused(node):
            continue
        if node.op_type in functions.EMBEDDINGS:
            ranks[node.outputs[0]] = 3
        elif node.op_type == functions.ATTENTION:
            ranks[node.outputs[0]] = 3
            if node.inputs[0] is not None:
                ranks[node.inputs[0]] = 3
        elif node.op_type == functions.CORE:
            ranks |= {value: 3 for value in (*node.inputs[:3], *node.outputs) if value is not None}
    for node in graph:
        if any(value in ranks for value in node.inputs) and not any(value in ranks for value in node.outputs):
            rank = tokens.rank_by_token(node, ranks)
            if rank is not None:
                ranks.update(dict.fromkeys(node.outputs, rank))
    return ranks


def _by_name(graph: ir.Graph) -> MaskInput:
    mask = next((value for value in graph.inputs if value.name == _CONVENTIONAL_NAME), None)
    if mask is None or mask.shape is None or len(mask.shape) != 2:
        return MaskInput()
    if any(_size(size) is None for size in mask.shape):
        return MaskInput(mask.name)
    mask_sizes = [_size(size) for size in mask.shape]
    shapes = {value.name or "": value.shape for value in graph.outputs}
    sizes = {name: None if shape is None else [_size(size) for size in shape[:2]] for name, shape in shapes.items()}
    if any(size is None or None in size for size in sizes.values()):
        return MaskInput(mask.name)
    by_token = tuple(name for name, size in sizes.items() if size == mask_sizes)
    return MaskInput(mask.name, token_outputs=by_token)


def _size(size: int | ir.SymbolicDim) -> int | str | None:
    return size if isinstance(size, int) else size.value
