"""How nodes process tokens: independently of one another, or by position.

A token-level value of rank r has r - 2 dimensions after batch and sequence.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from isorun.graph.analysis.evaluate import behind
from isorun.graph.io.nodes import needed
from isorun.graph.ops import functions

# Operators that compute each token's output from the same token's inputs.
_ELEMENTWISE = frozenset(
    (
        *("Abs", "Cast", "Celu", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity"),
        *("LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Sqrt", "Swish"),
        "Tanh",
    )
)
ARITHMETIC = frozenset(("Add", "Div", "Mul", "Pow", "Sub"))
"""Operators of two operands that broadcast."""
_REDUCTIONS = frozenset(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
_FUSED = {  # and the number of token-level inputs
    **{"BiasGelu": 1, "BiasGeluTanh": 1, "SkipLayerNormalization": 2, functions.RMS_NORM: 1},
    **{functions.ROTATE: 1, functions.NORMALIZE_HEADS: 1},
    **dict.fromkeys(functions.GATED, 2),
}
# Operators that preserve a mask's zeros, or exchange them with its ones.
_PASS_ON = frozenset(("Cast", "Expand", "Identity", "Not", "Unsqueeze"))
_MAX_POSITIONS = 16  # a node that reads more is not a pooler


def rank_by_token(node: ir.Node, ranks: Mapping[ir.Value, int]) -> int | None:
    """The rank of a node's outputs if it processes tokens independently; ``None`` if it does not.

    Args:
        node: a node that reads at least one of the values.
        ranks: the token-level values, with their ranks.
    """
    rank = max(ranks[value] for value in node.inputs if value is not None and value in ranks)
    if functions.is_fused(node):
        tokens = node.inputs[: _FUSED.get(node.op_type, 0)]
        return rank if tokens and all(_applies_to_all(value, rank, ranks) for value in tokens) else None
    if node.domain != "":
        return None
    if node.op_type in _ELEMENTWISE:
        return rank
    if node.op_type in ARITHMETIC:
        return rank if all(_applies_to_all(value, rank, ranks) for value in node.inputs) else None
    if node.op_type == "Concat":
        joins = all(value is not None and ranks.get(value) == rank for value in node.inputs)
        return rank if joins and _axis(node, rank, 0) >= 2 else None
    if node.inputs[0] not in ranks or any(constant(value) is None for value in node.inputs[1:]):
        return None
    match node.op_type:
        case "MatMul":
            independent = rank == 3 and _dimensions(node.inputs[1]) == 2
        case "LayerNormalization":
            independent = rank == 3 and _axis(node, rank, -1) == 2
        case "Softmax" | "LogSoftmax" | "LpNormalization" | "TopK":
            independent = _axis(node, rank, -1) >= 2
        case "QuantizeLinear" | "DequantizeLinear":  # with one scale, or one for each channel
            by_channel = _axis(node, rank, 1) >= 2 and not node.attributes.get_int("block_size", 0)
            independent = by_channel or all(_dimensions(value) == 0 for value in node.inputs[1:])
        case "ArgMax" | "ArgMin":
            independent = _axis(node, rank, 0) >= 2
            rank -= 1 - node.attributes.get_int("keepdims", 1)
        case "Split":
            independent = _axis(node, rank, 0) >= 2
        case "Gather":
            independent = _axis(node, rank, 0) >= 2
            rank += _dimensions(node.inputs[1]) - 1
        case "Slice":
            axes = _integers(node.inputs[3]) if len(node.inputs) > 3 else []
            independent = bool(axes) and all(axis % rank >= 2 for axis in axes)
        case kind if kind == "Squeeze" or kind in _REDUCTIONS:
            axes = axes_of(node)
            independent = bool(axes) and all(axis % rank >= 2 for axis in axes)
            rank -= len(axes) if kind == "Squeeze" or not node.attributes.get_int("keepdims", 1) else 0
        case _:
            independent = False
    return rank if independent else None


def is_joining(node: ir.Node) -> bool:
    """Whether a node may combine several values of the same token, and does no more."""
    if functions.is_fused(node):
        return node.op_type in _FUSED
    beside = node.op_type == "Concat" and node.attributes.get_int("axis", 0) not in (0, 1)
    return node.domain == "" and (beside or node.op_type in ARITHMETIC)


def positions_read(node: ir.Node, rank: int) -> list[int]:
    """The positions that a Gather or Slice of tokens reads; empty for any other node.

    Positions counted from the end are not included: they change with a batch's padding.
    """
    if node.domain != "":
        return []
    numbers: list[int] = []
    if node.op_type == "Gather" and _axis(node, rank, 0) == 1:
        numbers = _integers(node.inputs[1])
    elif node.op_type == "Slice":
        bounds = [_integers(value) for value in node.inputs[1:]]
        if len(bounds) >= 3 and all(len(bound) == 1 for bound in bounds):
            (start,), (stop,), (axis,), *steps = bounds
            if axis % rank == 1 and steps in ([], [[1]]) and stop - start <= _MAX_POSITIONS:
                numbers = list(range(start, stop))
    return numbers if numbers and min(numbers) >= 0 else []


def computed_positions(node: ir.Node) -> ir.Value | None:
    """The index of a GatherND that reads single tokens, ``None`` for any other node.

    It is (B, 1), a position in each row of the batch, or (N, 2), rows and positions.
    """
    if node.domain != "" or node.op_type != "GatherND":
        return None
    index, by_row = node.inputs[1], node.attributes.get_int("batch_dims", 0)
    shape = None if index is None else index.shape
    return index if shape is not None and len(shape) == 2 and by_row < 2 and shape[1] == 2 - by_row else None


def is_flattening(node: ir.Node, rank: int) -> bool:
    """Whether a node makes (B S, W) of tokens (B, S, W)."""
    return (node.domain, node.op_type, rank) == ("", "Flatten", 3) and _axis(node, rank, 1) == 2


def is_mask(value: ir.Value | None, mask: ir.Value) -> bool:
    """Whether a factor of tokens (B, S, W) is the mask, possibly cast and broadcast over the width."""
    return _broadcast(value, 3) == origin(mask)


def replaces_padding(node: ir.Node, mask: ir.Value, ranks: Mapping[ir.Value, int]) -> bool:
    """Whether a ``Where`` takes a token-level value where the mask is not 0, and something else where it is.

    Args:
        node: any node.
        mask: the mask.
        ranks: the token-level values, with their ranks.
    """
    by_token = {
        index: ranks[operand] for index, operand in enumerate(node.inputs) if operand is not None and operand in ranks
    }
    if (node.domain, node.op_type) != ("", "Where") or [*by_token] not in ([1], [2]):
        return False
    ((index, rank),) = by_token.items()
    value, inverted = origin(mask)
    return _broadcast(node.inputs[0], rank) == (value, inverted ^ (index == 2))


def _broadcast(value: ir.Value | None, rank: int) -> tuple[ir.Value | None, bool] | None:
    """The (batch, sequence) value that one of this rank is broadcast from, and whether it is inverted; ``None`` if
    there is none."""
    inverted = False
    while value is not None and (node := value.producer()) is not None and node.domain == "":
        is_zero = node.op_type == "Equal" and _integers(node.inputs[1]) == [0]
        if node.op_type not in _PASS_ON and not is_zero:
            break
        if node.op_type == "Unsqueeze":
            rank -= 1
            if axes_of(node) not in ([-1], [rank]):
                return None
        inverted ^= is_zero or node.op_type == "Not"
        value = node.inputs[0]
    return (value, inverted) if rank == 2 else None


def source(value: ir.Value) -> ir.Value:
    """The value that a mask, or ids, are cast from."""
    return behind(value, {"Cast", "Identity"})


def origin(mask: ir.Value) -> tuple[ir.Value, bool]:
    """The value that a mask is computed from, and whether it is inverted: 0 where the mask is not."""
    inverted = False
    while (node := (mask := source(mask)).producer()) is not None and node.domain == "" and node.op_type == "Not":
        mask, inverted = needed(node.inputs[0]), not inverted
    return mask, inverted


def flattened_input(value: ir.Value) -> ir.Value | None:
    """The (batch, choices, sequence) input that a (rows, sequence) value is reshaped from; ``None`` if it is not."""
    node = value.producer()
    source = None if node is None or node.op_type != "Reshape" or node.domain != "" else node.inputs[0]
    if source is None or not source.is_graph_input() or source.const_value is not None or source.dtype is None:
        return None
    is_flat = value.shape is not None and len(value.shape) == 2
    return source if is_flat and source.shape is not None and len(source.shape) == 3 else None


def split_sizes(node: ir.Node, size: int) -> list[int]:
    """The sizes of the parts that a ``Split`` makes of an axis of a size; empty if they are computed."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        tensor = constant(node.inputs[1])
        return [] if tensor is None else tensor.numpy().tolist()
    count = len(node.outputs)
    part = -(-size // count)  # the last one may be smaller
    return list(node.attributes.get_ints("split", ())) or [part] * (count - 1) + [size - part * (count - 1)]


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of a constant, which is not read yet; ``None`` for any other value."""
    return None if value is None else ir.convenience.get_const_tensor(value)


def _applies_to_all(value: ir.Value | None, rank: int, ranks: Mapping[ir.Value, int]) -> bool:
    """Whether an operand is a token-level value, or a constant that is the same for every token."""
    if value is not None and value in ranks:
        return ranks[value] == rank
    tensor = constant(value)
    if tensor is None:
        return False
    shape = list(tensor.shape)
    return len(shape) <= rank and all(size == 1 for size in shape[: max(0, len(shape) - rank + 2)])


def _dimensions(value: ir.Value | None) -> int:
    tensor = constant(value)
    return 0 if tensor is None else len(tensor.shape)


def _integers(value: ir.Value | None) -> list[int]:
    """The elements of a small constant; empty for any other value."""
    tensor = constant(value)
    if tensor is None or tensor.size > _MAX_POSITIONS:
        return []
    return [int(number) for number in tensor.numpy().reshape(-1)]


def axes_of(node: ir.Node) -> list[int]:
    """The axes that a node names, in an attribute or, since a later opset, in its second input."""
    return _integers(node.inputs[1]) if len(node.inputs) > 1 else [*node.attributes.get_ints("axes", ())]


def _axis(node: ir.Node, rank: int, default: int) -> int:
    return node.attributes.get_int("axis", default) % rank
