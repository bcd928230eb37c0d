"""No work for padding: a rewrite of the fused form in which dense layers run over real tokens alone.

What belongs to a token has the shape (B, S, ...) in the fused form. Here it has the shape (1, T, ...): the T
tokens that are kept, those of all rows side by side. Dense layers, normalization and activations treat
each token alike and stay as they are. For the attention core the tokens go back to their rows, and so they do
at the outputs.

Kept are the positions with a mask other than 0, and besides:

- every position of a row without any key: such a row attends to all its positions alike;
- position 0 and every other position that the graph reads by its number, as a pooler reads the first.

So whatever a sequence-level output is made from is there, whatever the mask, and the output is unchanged.
Outputs with a value for each token are zero where the mask is 0.

A graph that reads hidden states in another way (their plain mean, say) would see that the padding is gone:
it is refused, by the name of the node that does so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph import functions

# Operators that make each token's output from the same token's inputs.
_ELEMENTWISE = frozenset(("Cast", "Erf", "Gelu", "Identity", "Relu", "Sigmoid", "Sqrt", "Tanh"))
_ARITHMETIC = frozenset(("Add", "Div", "Mul", "Pow", "Sub"))
_FUSED = {"BiasGelu": 1, "BiasGeluTanh": 1, "SkipLayerNormalization": 2}  # and how many inputs are tokens'
# Operators that keep a mask's zeros where they are.
_PASS_ON = frozenset(("Cast", "Expand", "Identity", "Unsqueeze"))
_MOST_POSITIONS = 16  # read by number; one that reads more is no pooler


@dataclass(frozen=True, slots=True)
class Removed:
    """What became known of a graph by removing its padding.

    Attributes:
        mask: the graph's input that the key mask is made from, (B, S) with 0 for padding; ``None`` where the
            mask is made in another way.
        token_outputs: the outputs that have a value for each token, (B, S, ...).
    """

    mask: str | None
    token_outputs: tuple[str, ...]


def remove(model: ir.Model) -> Removed:
    """Rewrite a model in the fused form, in place, so that only the attention core works on padding.

    Args:
        model: a graph with operators of the domain ``isorun.fused``.

    Raises:
        UnsupportedModel: the graph does something for which its padding has to be there. The model is half
            rewritten then, and of no more use.
    """
    return _Removal(model).run()


@dataclass(frozen=True, slots=True)
class _Half:
    """Half of a batch's rows, h of them, as the attention core takes them; L is the longest's number of tokens.

    Attributes:
        name: of the half.
        rows: (h, L), where the tokens are among the kept ones; a row's last token fills it up.
        mask: (h, L) int64, 1 for a key.
    """

    name: str
    rows: ir.Value
    mask: ir.Value


class _Removal:
    """One rewrite.

    ``_packed`` holds the values that have the shape (1, T, ...) by now, each with its rank. ``_kept`` (1, T)
    is where the kept tokens are among all B S of them; ``_rows`` (B, S) is, for every position, where its
    token is among the kept ones. For a position that is not kept it is the one kept last before it: of the
    same row, since position 0 always is. ``_back`` (1, T) is where the kept tokens are among what the halves'
    attention gives.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._graph = model.graph
        self._mask = _key_mask(model.graph)
        self._packed: dict[ir.Value, int] = {}
        self._kept, self._rows, self._attends, self._back = (_later(n) for n in ("kept", "rows", "attends", "back"))
        self._halves = [_Half(name, _later(f"{name}.rows"), _later(f"{name}.mask")) for name in ("longer", "shorter")]
        self._positions = {0}
        self._made: dict[tuple[str, ir.Value], ir.Value] = {}
        self._constants: dict[tuple[int, ...] | int, ir.Value] = {}

    def run(self) -> Removed:
        outputs = [(value, value.name, value.shape, value.type) for value in self._graph.outputs]
        for node in list(self._graph):
            if _is_fused(node, "EmbedLayerNormalization"):
                self._embed(node)
            elif _is_fused(node, "SelfAttention"):
                self._attend(node)
            elif any(value in self._packed for value in node.inputs):
                rank = self._rank_by_token(node)
                if rank is not None:
                    for value in node.outputs:
                        self._pack(value, rank)
                elif not self._read_positions(node):
                    self._restore_inputs(node)
        for index, (value, name, shape, kind) in enumerate(outputs):
            if value in self._packed:
                value.name = f"{name}.packed"
                given = self._restored(value)
                given.name, given.shape, given.type = name, shape, kind
                self._graph.outputs[index] = given
        self._index()
        self._graph.sort()
        self._carry_bodies()
        source = _source(self._mask)
        tokens = tuple(name for value, name, *_ in outputs if value in self._packed and name)
        return Removed(source.name if source.is_graph_input() else None, tokens)

    def _pack(self, value: ir.Value, rank: int) -> None:
        self._packed[value] = rank
        value.shape = None

    def _embed(self, node: ir.Node) -> None:
        for index in range(3):  # token ids, token types, positions: (B, S) or what broadcasts to it
            ids = node.inputs[index]
            if ids is not None:
                node.replace_input_with(index, self._once("ids", ids))
        self._pack(node.outputs[0], 3)

    def _attend(self, node: ir.Node) -> None:
        """The product with Q, K and V over tokens, the attention core over rows."""
        hidden, _, weight, bias, *rest = node.inputs
        if rest:
            raise UnsupportedModel(f"Padding cannot be removed: {_name(node)} has a bias on its scores")
        if hidden not in self._packed:
            raise UnsupportedModel(
                f"Padding cannot be removed: {_name(node)} does not read what an EmbedLayerNormalization began"
            )
        name = _name(node)
        product = self._node("MatMul", f"{name}.product", [hidden, weight])
        biased = self._node("Add", f"{name}.biased", [product, bias])
        # A token's Q, K and V lie side by side: as rows of one table they are its rows 3 t, 3 t + 1, 3 t + 2.
        width = self._ints((-1, _columns(weight) // 3))
        table = self._node("Reshape", f"{name}.table", [biased, width])
        heads = node.attributes["num_heads"].as_int()
        contexts = []
        for half in self._halves:
            parts = [
                self._node("Gather", f"{name}.{half.name}.{part}", [table, self._once(part, half.rows)], axis=0)
                for part in ("query", "key", "value")
            ]
            core = self._node(
                "AttentionCore",
                f"{name}.{half.name}.core",
                [*parts, half.mask],
                domain=functions.DOMAIN,
                num_heads=heads,
            )
            contexts.append(self._node("Reshape", f"{name}.{half.name}.flat", [core, width]))
        context = self._node("Concat", f"{name}.context", contexts, axis=0)
        packed = self._node("Gather", f"{name}.packed", [context, self._back], axis=0)
        self._pack(packed, 3)
        self._replace(node, packed)

    def _rank_by_token(self, node: ir.Node) -> int | None:
        """The rank of a node's outputs where it treats every token alike; ``None`` where it does not."""
        rank = max(self._packed[value] for value in node.inputs if value in self._packed)
        if functions.is_fused(node):
            tokens = node.inputs[: _FUSED.get(node.op_type, 0)]
            return rank if tokens and all(value in self._packed for value in tokens) else None
        if node.domain != "":
            return None
        if node.op_type in _ELEMENTWISE:
            return rank
        if node.op_type in _ARITHMETIC:
            return rank if all(self._alike(value, rank) for value in node.inputs) else None
        if node.inputs[0] not in self._packed:
            return None
        operands = [_array(value) for value in node.inputs[1:]]
        if any(operand is None for operand in operands):
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
                axes = _integers(node.inputs[1]) if operands else []
                alike = bool(axes) and all(axis % rank >= 2 for axis in axes)
                rank -= len(axes)
            case _:
                alike = False
        return rank if alike else None

    def _alike(self, value: ir.Value | None, rank: int) -> bool:
        """Whether an operand is packed, or a constant that is the same for every token."""
        if value in self._packed:
            return self._packed[value] == rank
        constant = _array(value)
        if constant is None:
            return False
        shape = list(constant.shape)
        return len(shape) <= rank and all(size == 1 for size in shape[: max(0, len(shape) - rank + 2)])

    def _read_positions(self, node: ir.Node) -> bool:
        """Have a node that reads positions by their numbers read those tokens; whether it is such a node."""
        value = node.inputs[0]
        if node.domain != "" or value not in self._packed:
            return False
        assert value is not None
        rank = self._packed[value]
        if node.op_type == "Gather" and _axis(node, rank, 0) == 1:
            numbers = _integers(node.inputs[1])
        elif node.op_type == "Slice":
            numbers = _sliced(node, rank)
        else:
            return False
        # Counted from the end, a position would change with the padding that a batch happens to have.
        if not 0 < len(numbers) <= _MOST_POSITIONS or min(numbers) < 0:
            return False
        self._positions.update(numbers)
        inputs = [self._rows, *node.inputs[1:]]
        name = f"{_name(node)}.rows"
        rows = (
            self._node("Gather", name, inputs, axis=1)
            if node.op_type == "Gather"
            else self._node("Slice", name, inputs)
        )
        read = self._node("Gather", f"{_name(node)}.tokens", [self._once("table", value), rows], axis=0)
        self._replace(node, read)
        return True

    def _restore_inputs(self, node: ir.Node) -> None:
        """Give a node rows again, with zeros for padding, where it cannot see the difference."""
        shape = node.op_type == "Shape" and node.domain == ""
        masked = node.op_type == "Mul" and node.domain == "" and any(map(self._is_mask, node.inputs))
        if not shape and not masked:
            raise UnsupportedModel(
                f"Padding cannot be removed: {_name(node)} ({node.op_type}) may read the hidden states of padding"
            )
        for index, value in enumerate(node.inputs):
            if value is not None and value in self._packed:
                node.replace_input_with(index, self._restored(value))

    def _is_mask(self, value: ir.Value | None) -> bool:
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
        return spread and value is _source(self._mask)

    def _restored(self, value: ir.Value) -> ir.Value:
        """(1, T, ...) -> (B, S, ...) with zeros where the mask is 0."""
        return self._once("restored", value)

    def _once(self, what: str, value: ir.Value) -> ir.Value:
        """What is made from a value the first time that it is asked for."""
        if (what, value) not in self._made:
            self._made[what, value] = self._make(what, value, f"{value.name}.{what}")
        return self._made[what, value]

    def _make(self, what: str, value: ir.Value, name: str) -> ir.Value:
        if what == "ids":  # what broadcasts to (B, S) -> (1, T)
            whole = self._node("Expand", f"{name}.whole", [value, self._once("shape", self._mask)])
            flat = self._node("Reshape", f"{name}.flat", [whole, self._ints((-1,))])
            return self._node("Gather", name, [flat, self._kept], axis=0)
        if what == "table":  # (1, T, ...) -> (T, ...)
            return self._node("Squeeze", name, [value, self._ints((0,))])
        if what == "restored":
            rows = self._node("Gather", f"{name}.rows", [self._once("table", value), self._rows], axis=0)
            real, rank = self._attends, self._packed[value]
            if rank > 2:
                real = self._node("Unsqueeze", f"{name}.real", [real, self._ints(tuple(range(2, rank)))])
            zero = self._node("CastLike", f"{name}.zero", [self._ints(0), value])
            return self._node("Where", name, [real, rows, zero])
        if what == "shape":
            return self._node("Shape", name, [value])
        if what == "flat_rows":
            return self._node("Reshape", name, [value, self._ints((-1,))])
        if what == "thrice":
            return self._node("Mul", name, [value, self._ints(3)])
        # the row of a token's query, key or value in the table of all three
        part = ("query", "key", "value").index(what)
        thrice = self._once("thrice", value)
        return thrice if part == 0 else self._node("Add", name, [thrice, self._ints(part)])

    def _index(self) -> None:
        """What is kept, and where: now that it is known which positions the graph reads."""
        boolean, integer = int(ir.DataType.BOOL), int(ir.DataType.INT64)
        mask, shape = self._mask, self._once("shape", self._mask)
        attends = self._node("Cast", "padding.attends", [mask], output=self._attends, to=boolean)
        ones = self._node("Cast", "padding.ones", [attends], to=integer)
        keys = self._node("ReduceSum", "padding.keys", [ones, self._ints((1,))], keepdims=1)
        keyless = self._node("Equal", "padding.keyless", [keys, self._ints(0)])
        kept = self._node("Or", "padding.attends_or_keyless", [attends, keyless])
        length = self._node("Gather", "padding.length", [shape, self._ints(1)], axis=0)
        numbers = self._node("Range", "padding.numbers", [self._ints(0), length, self._ints(1)])
        for position in sorted(self._positions):
            there = self._node("Equal", f"padding.there.{position}", [numbers, self._ints(position)])
            kept = self._node("Or", f"padding.kept.{position}", [kept, there])
        kept = self._node("Cast", "padding.each", [kept], to=integer)
        flat = self._node("Reshape", "padding.flat", [kept, self._ints((-1,))])
        self._node("NonZero", "padding.kept", [flat], output=self._kept)
        count = self._node("CumSum", "padding.count", [flat, self._ints(0)])
        last = self._node("Sub", "padding.last", [count, self._ints(1)])
        self._node("Reshape", "padding.rows", [last, shape], output=self._rows)
        self._halve(kept, shape)

    def _halve(self, kept: ir.Value, shape: ir.Value) -> None:
        """The rows in two halves by their numbers of kept tokens, each row's tokens side by side from its start on.

        With an odd number of rows the one in the middle is in both. A row without any key has kept all of its
        S positions, and is the longest of its half: what it attends to does not change.
        """
        node, ints = self._node, self._ints
        counts = node("ReduceSum", "padding.counts", [kept, ints((1,))], keepdims=0)  # (B)
        starts = node("CumSum", "padding.starts", [counts, ints(0)], exclusive=1)
        rows = node("Gather", "padding.batch", [shape, ints((0,))], axis=0)
        order = self._sort("padding.order", counts, rows, largest=1)
        rank = self._sort("padding.rank", order, rows, largest=0)
        half = node("Div", "padding.half", [node("Add", "padding.rows_and_one", [rows, ints(1)]), ints(2)])
        rest = node("Sub", "padding.rest", [rows, half])  # where the second half begins
        flat_mask = node("Reshape", "padding.flat_mask", [self._attends, ints((-1,))])
        real = node(
            "Squeeze", "padding.real", [node("Gather", "padding.real_kept", [flat_mask, self._kept]), ints((0,))]
        )
        lengths = []
        for each, first, end in zip(self._halves, (ints((0,)), rest), (half, rows), strict=True):
            name = f"padding.{each.name}"
            chosen = node("Slice", f"{name}.chosen", [order, first, end, ints((0,))])
            size = node("Gather", f"{name}.counts", [counts, chosen], axis=0)
            length = node("Gather", f"{name}.length", [size, ints(0)], axis=0)  # sorted: the first is the longest
            numbers = node("Range", f"{name}.numbers", [ints(0), length, ints(1)])
            sizes = node("Unsqueeze", f"{name}.sizes", [size, ints((1,))])
            ends = node("Sub", f"{name}.ends", [sizes, ints(1)])
            begins = node(
                "Unsqueeze", f"{name}.begins", [node("Gather", f"{name}.starts", [starts, chosen]), ints((1,))]
            )
            held = node("Min", f"{name}.held", [numbers, ends])
            node("Add", f"{name}.rows", [begins, held], output=each.rows)
            inside = node("Less", f"{name}.inside", [numbers, sizes])
            keys = node("And", f"{name}.keys", [inside, node("Gather", f"{name}.real", [real, each.rows], axis=0)])
            node("Cast", f"{name}.mask", [keys], output=each.mask, to=int(ir.DataType.INT64))
            lengths.append(length)
        # Where each row's tokens begin in the two halves' results, less where they begin among the kept ones.
        in_longer = node("Mul", "padding.in_longer", [rank, lengths[0]])
        beyond = node("Mul", "padding.beyond", [node("Sub", "padding.rank_in_rest", [rank, rest]), lengths[1]])
        before = node("Mul", "padding.before", [half, lengths[0]])
        in_shorter = node("Add", "padding.in_shorter", [beyond, before])
        place = node("Where", "padding.place", [node("Less", "padding.is_longer", [rank, half]), in_longer, in_shorter])
        shift = node("Sub", "padding.shift", [place, starts])
        row = node("Div", "padding.row", [self._kept, node("Gather", "padding.width", [shape, ints(1)], axis=0)])
        number = node("Gather", "padding.number", [self._once("flat_rows", self._rows), self._kept], axis=0)
        node(
            "Add", "padding.back", [number, node("Gather", "padding.shift_of", [shift, row], axis=0)], output=self._back
        )

    def _sort(self, name: str, values: ir.Value, count: ir.Value, *, largest: int) -> ir.Value:
        """The order (B) of values (B), the largest or smallest first."""
        outputs = [ir.Value(name=f"{name}.values"), ir.Value(name=name)]
        self._graph.append(ir.node("TopK", [values, count], {"largest": largest}, name=name, outputs=outputs))
        return outputs[1]

    def _carry_bodies(self) -> None:
        """The functions that the fused form calls by now, for readers that do not know the domain."""
        called = {node.op_type for node in self._graph if functions.is_fused(node)}
        for identifier in [each for each in self._model.functions if each[0] == functions.DOMAIN]:
            del self._model.functions[identifier]
        for name, body in functions.functions(functions.BODIES).items():
            if name in called:
                self._model.functions[body.identifier()] = body

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        """Put a value in the place of a node's only output."""
        old = node.outputs[0]
        if value not in self._packed:
            value.shape, value.type = old.shape, old.type
        name, old.name = old.name, None
        old.replace_all_uses_with(value, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)
        value.name = name

    def _ints(self, values: tuple[int, ...] | int) -> ir.Value:
        """A constant, int64: a scalar or of one dimension."""
        if values not in self._constants:
            name = "padding.constant." + "_".join(map(str, values if isinstance(values, tuple) else ("scalar", values)))
            tensor = ir.tensor(np.array(values, np.int64), name=name)
            shape = ir.Shape(np.shape(values))
            value = ir.Value(name=name, const_value=tensor, shape=shape, type=ir.TensorType(tensor.dtype))
            self._graph.initializers.add(value)
            self._constants[values] = value
        return self._constants[values]

    def _node(
        self,
        kind: str,
        name: str,
        inputs: Sequence[ir.Value | None],
        domain: str = "",
        output: ir.Value | None = None,
        **attributes: int,
    ) -> ir.Value:
        node = ir.node(kind, list(inputs), attributes, domain=domain, name=name, outputs=[output] if output else None)
        self._graph.append(node)
        node.outputs[0].name = name
        return node.outputs[0]


def _key_mask(graph: ir.Graph) -> ir.Value:
    """The mask of all the attention layers."""
    masks = {node.inputs[1] for node in graph if _is_fused(node, "SelfAttention")}
    if not masks:
        raise UnsupportedModel("Padding cannot be removed: the model has no SelfAttention of the fused form")
    mask = masks.pop()
    if masks or mask is None:
        raise UnsupportedModel("Padding cannot be removed: not all layers have the same key mask")
    return mask


def _later(name: str) -> ir.Value:
    """A value that is used before the node that makes it is there."""
    return ir.Value(name=f"padding.{name}")


def _source(value: ir.Value) -> ir.Value:
    """What a mask is cast from."""
    while (node := value.producer()) is not None and node.domain == "" and node.op_type in ("Cast", "Identity"):
        assert node.inputs[0] is not None
        value = node.inputs[0]
    return value


def _is_fused(node: ir.Node, kind: str) -> bool:
    return functions.is_fused(node) and node.op_type == kind


def _name(node: ir.Node) -> str:
    return node.name or node.outputs[0].name or node.op_type


def _array(value: ir.Value | None) -> ir.TensorProtocol | None:
    """A constant; its data is read only where it is asked for."""
    return None if value is None else ir.convenience.get_const_tensor(value)


def _dimensions(value: ir.Value | None) -> int:
    tensor = _array(value)
    return 0 if tensor is None else len(tensor.shape)


def _columns(weight: ir.Value | None) -> int:
    """The width of a dense layer's output."""
    tensor = _array(weight)
    if tensor is None:
        raise UnsupportedModel("Padding cannot be removed: the weights of an attention layer are not constants")
    return int(tensor.shape[1])  # type: ignore[arg-type]  # a tensor's dimensions are numbers


def _integers(value: ir.Value | None) -> list[int]:
    """A small constant's numbers; empty where it is no constant."""
    tensor = _array(value)
    if tensor is None or tensor.size > _MOST_POSITIONS:
        return []
    return [int(number) for number in tensor.numpy().reshape(-1)]


def _axis(node: ir.Node, rank: int, default: int) -> int:
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else default
    return axis % rank


def _sliced(node: ir.Node, rank: int) -> list[int]:
    """The positions that a Slice reads; empty where they are not known or it cuts another dimension."""
    given = [_integers(value) for value in node.inputs[1:]]
    if len(given) < 3 or any(len(numbers) != 1 for numbers in given):
        return []
    (start, stop, axes, *steps) = given
    if steps not in ([], [[1]]) or axes[0] % rank != 1:
        return []
    return list(range(start[0], stop[0])) if start[0] >= 0 and stop[0] - start[0] <= _MOST_POSITIONS else []
