"""What a node does with tokens: whether it treats each alike, which positions it reads by their numbers.

Values are named by rank: one of rank r that belongs to tokens has r - 2 dimensions after those of the batch and
the sequence.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from isorun.graph.ops import functions

# Operators that make each token's output from the same token's inputs.
_ELEMENTWISE = frozenset(("Cast", "Erf", "Gelu", "Identity", "Relu", "Sigmoid", "Sqrt", "Tanh"))
_ARITHMETIC = frozenset(("Add", "Div", "Mul", "Pow", "Sub"))
_FUSED = {"BiasGelu": 1, "BiasGeluTanh": 1, "SkipLayerNormalization": 2}  # and how many inputs are tokens'
# Operators that keep a mask's zeros where they are.
_PASS_ON = frozenset(("Cast", "Expand", "Identity", "Unsqueeze"))
_MOST_POSITIONS = 16  # read by number; a node that reads more is no pooler


def rank_by_token(node: ir.Node, ranks: Mapping[ir.Value, int]) -> int | None:
    """The rank of a node's outputs where it treats every token alike; ``None`` where it does not.

    Args:
        node: one that reads at least one of the values.
        ranks: the values that belong to tokens, with their ranks.
    """
    rank = max(ranks[value] for value in node.inputs if value is not None and value in ranks)
    if functions.is_fused(node):
        tokens = node.inputs[: _FUSED.get(node.op_type, 0)]
        return rank if tokens and all(value in ranks for value in tokens) else None
    if node.domain != "":
        return None
    if node.op_type in _ELEMENTWISE:
        return rank
    if node.op_type in _ARITHMETIC:
        return rank if all(_same_for_all(value, rank, ranks) for value in node.inputs) else None
    if node.inputs[0] not in ranks or any(constant(value) is None for value in node.inputs[1:]):
        return None
    match node.op_type:
        case "MatMul":
            alike = rank == 3 and _dimensions(node.inputs[1]) == 2
        case "LayerNormalization":
            alike = rank == 3 and _axis(node, rank, -1) == 2
        case "Softmax" | "LogSoftmax":
            alike = _axis(node, rank, -1) >= 2
        case "Split":
            alike = _axis(node, rank, 0) >= 2
        case "Gather":
            alike = _axis(node, rank, 0) >= 2
            rank += _dimensions(node.inputs[1]) - 1
        case "Squeeze":
            axes = _integers(node.inputs[1]) if len(node.inputs) > 1 else []
            alike = bool(axes) and all(axis % rank >= 2 for axis in axes)
            rank -= len(axes)
        case _:
            alike = False
    return rank if alike else None


def positions_read(node: ir.Node, rank: int) -> list[int]:
    """The positions that a Gather or Slice of tokens reads by their numbers; empty where it is no such node.

    Positions counted from the end are none: with a batch's padding they would change.
    """
    if node.domain != "":
        return []
    numbers: list[int] = []
    if node.op_type == "Gather" and _axis(node, rank, 0) == 1:
        numbers = _integers(node.inputs[1])
    elif node.op_type == "Slice":
        given = [_integers(value) for value in node.inputs[1:]]
        if len(given) >= 3 and all(len(each) == 1 for each in given):
            (start,), (stop,), (axis,), *steps = given
            if axis % rank == 1 and steps in ([], [[1]]) and stop - start <= _MOST_POSITIONS:
                numbers = list(range(start, stop))
    return numbers if numbers and min(numbers) >= 0 else []


def is_mask(value: ir.Value | None, mask: ir.Value) -> bool:
    """Whether a factor of hidden states is the mask, at most cast and spread over the hidden dimension."""
    spread = False
    while value is not None and (node := value.producer()) is not None:
        if node.domain != "" or node.op_type not in _PASS_ON:
            break
        if node.op_type == "Unsqueeze":
            spread = _integers(node.inputs[1]) in ([-1], [2])
            if not spread:
                return False
        value = node.inputs[0]
    return spread and value is source(mask)


def source(mask: ir.Value) -> ir.Value:
    """What a mask is cast from."""
    while (node := mask.producer()) is not None and node.domain == "" and node.op_type in ("Cast", "Identity"):
        assert node.inputs[0] is not None
        mask = node.inputs[0]
    return mask


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """A constant; its data is read only where it is asked for."""
    return None if value is None else ir.convenience.get_const_tensor(value)


def _same_for_all(value: ir.Value | None, rank: int, ranks: Mapping[ir.Value, int]) -> bool:
    """Whether an operand belongs to tokens, or is a constant that is the same for every one."""
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
    """A small constant's numbers; empty where it is no constant."""
    tensor = constant(value)
    if tensor is None or tensor.size > _MOST_POSITIONS:
        return []
    return [int(number) for number in tensor.numpy().reshape(-1)]


def _axis(node: ir.Node, rank: int, default: int) -> int:
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else default
    return axis % rank
