"""Padding removal: a rewrite of the fused form in which dense layers run over real tokens alone.

In the fused form, values that belong to tokens have the shape (B, S, ...). Here they have the shape (1, T, ...): the T
tokens that are kept, those of all rows side by side. Dense layers, normalization and activations process each token
alike and stay as they are. The attention core and the outputs get the tokens in rows again.

Kept are the positions with a mask other than 0, and:

- every position of a fully masked row, which attends to all its positions alike;
- position 0 and every other position that the graph reads by its number, as a pooler reads the first;
- every position of a row in which such a position that is read is padding, if masks differ between queries: in its
  window there may be no key, and then it attends to all positions alike.

What is computed before the first attention in another way than token by token from an embedding of the fused form
(MobileBERT's neighbours, ESM's factor for each row) is computed for all positions, and those that are kept are taken
from it.

So every value that a sequence-level output depends on is kept for any mask, and that output is unchanged. Outputs with
a value for each token are zero where the mask is 0.

A graph that reads hidden states in another way (such as their plain mean) would see that the padding is gone. It is
rejected, with the name of the node. ``padding.onnxtxt`` computes where the tokens are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.analysis import mask_input, tokens
from isorun.graph.analysis.evaluate import data_inputs
from isorun.graph.ops import functions

_GROUPS = ("first", "second", "third", "fourth")
_OF_GROUP = ("", "_mask", "_positions", "_rows")
_PLACES = (
    *("kept", "rows", "places", "begin", "number", "length"),
    *(f"{group}{what}" for group in _GROUPS for what in _OF_GROUP),
)

_SAME_FOR_ALL = ("cos", "sin", "query_gamma", "key_gamma", "position_keys", "position_queries", "buckets")
_BY_QUERY = frozenset(("window", "causal", "paired"))
"""Attributes by which the keys of queries differ."""


def remove(model: ir.Model) -> tuple[str, ...]:
    """Rewrite a model in the fused form, in place, so that only the attention core works on padding.

    Args:
        model: a graph with operators of the domain ``isorun.fused``.

    Returns:
        The outputs with a value for each token, which are zero where the mask is 0.

    Raises:
        UnsupportedModel: the graph depends on its padding. The model is partly rewritten then: discard it.
    """
    return _Removal(model).run()


def examine(model: ir.Model) -> tuple[str, tuple[str, ...]]:
    """Why padding cannot be removed from a model, which stays as it is, empty where it can; and what :func:`remove`
    would return."""
    try:
        _key_mask(model.graph)  # most models that are refused are refused here, without a copy
        return "", remove(model.clone())
    except UnsupportedModel as error:
        return str(error), ()


def refusal(model: ir.Model) -> str:
    """Why padding cannot be removed from a model, which stays as it is; empty where it can."""
    return examine(model)[0]


class _Removal:
    """One rewrite. ``_packed`` holds the values that have the shape (1, T, ...) so far, each with its rank;
    ``_places`` the outputs of ``PackedPlaces`` by name."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._graph = model.graph
        self._mask = _key_mask(model.graph)
        self._packed: dict[ir.Value, int] = {}
        self._places = {name: ir.Value(name=f"padding.{name}") for name in _PLACES}
        self._masked: set[ir.Value] = set()  # those that were multiplied by the mask
        self._positions = {0}
        self._reads_positions = False
        self._made: dict[tuple[str, ir.Value], ir.Value] = {}
        self._constants: dict[tuple[int, ...] | int, ir.Value] = {}

    def run(self) -> tuple[str, ...]:
        outputs = [(value, value.name, value.shape, value.type) for value in self._graph.outputs]
        for node in list(self._graph):
            if functions.is_fused(node) and node.op_type in functions.EMBEDDINGS:
                if self._is_by_token(node):
                    self._embed(node)
            elif functions.is_fused(node) and node.op_type in (functions.ATTENTION, functions.CORE):
                self._attend(node)
            elif functions.is_fused(node) and node.op_type == functions.SINGLE_QUERY:
                self._attend_once(node)
            elif functions.is_fused(node) and node.op_type == functions.ROTATE:
                self._rotate(node)
            elif any(value in self._packed for value in node.inputs):
                self._take(node)
        for value in self._packed:
            if inner := next((use.node for use in value.uses() if use.node.graph is not self._graph), None):
                raise UnsupportedModel(
                    f"Padding cannot be removed: {_name(inner)} ({inner.op_type}), in a subgraph, may read the hidden "
                    "states of padding"
                )
        by_token = []
        for index, (value, name, shape, kind) in enumerate(outputs):
            if value in self._packed:
                by_token.append(name or "")
                value.name = f"{name}.packed"
                restored = self._once("restored", value)
                restored.name, restored.shape, restored.type = name, shape, kind
                self._graph.outputs[index] = restored
        self._graph.append(
            ir.node(
                "PackedPlaces",
                [self._mask],
                {"positions": sorted(self._positions), **({"whole": 1} if self._keeps_rows() else {})},
                domain=functions.DOMAIN,
                outputs=list(self._places.values()),
                name="padding.places",
            )
        )
        self._graph.sort()
        functions.carry(self._model)
        return tuple(by_token)

    def _keeps_rows(self) -> bool:
        """Whether a position that the graph reads depends on padding where it is padding itself: without a key it
        attends to all positions of its row."""
        packed = (node for node in self._graph if node.op_type == functions.PACKED)
        own_keys = any(not _BY_QUERY.isdisjoint(node.attributes) for node in packed)
        return own_keys and self._reads_positions

    def _pack(self, value: ir.Value, rank: int) -> None:
        self._packed[value] = rank
        value.shape = None

    def _is_by_token(self, embedding: ir.Node) -> bool:
        """Whether what is computed from an embedding alone, up to the attentions, is computed token by token."""
        ranks = {embedding.outputs[0]: 3}
        pending = [embedding.outputs[0]]
        while pending:
            value = pending.pop()
            for node in value.consumers():
                attends = functions.is_fused(node) and node.op_type in functions.ATTENTIONS
                others = (other for other in node.inputs if other is not None and other not in ranks)
                if attends or node.op_type == "Shape" or tokens.positions_read(node, ranks[value]):
                    continue
                if tokens.is_joining(node) and any(other.const_value is None for other in others):
                    continue
                rank = tokens.rank_by_token(node, ranks)
                if rank is None:
                    return False
                pending.extend(output for output in node.outputs if output not in ranks)
                ranks |= dict.fromkeys(node.outputs, rank)
        return True

    def _embed(self, node: ir.Node) -> None:
        for index in (*(index for index, _ in functions.TABLES.ids), functions.TABLES.at):
            ids = node.inputs[index] if index < len(node.inputs) else None  # (B, S), or positions that broadcast to it
            if ids is not None:
                node.replace_input_with(index, self._once("ids", ids))
        if (added := functions.inputs(node).get("added")) is not None:
            node.replace_input_with(functions.input_names(node.op_type).index("added"), self._once("gathered", added))
        self._pack(node.outputs[0], 3)

    def _attend(self, node: ir.Node) -> None:
        """The product with Q, K and V over tokens, the attention core over each group of rows."""
        by_name = functions.inputs(node)
        name = _name(node)
        if node.op_type == functions.ATTENTION:
            hidden = self._packed_form(by_name["hidden"], name)
            qkv = self._node("MatMul", f"{name}.product", [hidden, by_name["qkv_weight"]])
            if "qkv_bias" in by_name:
                qkv = self._node("Add", f"{name}.biased", [qkv, by_name["qkv_bias"]])
        else:
            parts = [self._packed_form(by_name[part], name) for part in ("query", "key", "value")]
            qkv = self._node("Concat", f"{name}.qkv", parts, axis=-1)
        attributes = {"mask_filter_value": functions.LOWEST, **{key: a.value for key, a in node.attributes.items()}}
        inputs = {"qkv": qkv} | {key: by_name[key] for key in _SAME_FOR_ALL if key in by_name}
        groups = {f"{group}{what}": self._places[f"{group}{what}"] for group in _GROUPS for what in ("", "_mask")}
        inputs |= groups | {what: self._places[what] for what in ("begin", "number", "length")}
        if "positions" in by_name:
            self._check_positions(by_name["positions"], name)
            inputs |= {f"{group}_positions": self._places[f"{group}_positions"] for group in _GROUPS}
        if "bias" in by_name:
            inputs |= {f"{group}_bias": self._once(group, by_name["bias"]) for group in _GROUPS}
        windowed = "window" in attributes
        if windowed:
            inputs |= {"kept": self._places["kept"], "key_mask": self._mask}
        guarded = 0 if windowed else attributes.pop("guarded", 0)
        packed = self._node(
            functions.PACKED,
            f"{name}.packed",
            functions.ordered(functions.PACKED, inputs),
            domain=functions.DOMAIN,
            **attributes,
        )
        if guarded:  # a query without any key gives zeros
            what = "guard" if _BY_QUERY.isdisjoint(attributes) else "own_guard"
            factor = self._node("CastLike", f"{name}.guard", [self._once(what, self._mask), packed])
            packed = self._node("Mul", f"{name}.guarded", [packed, factor])
        self._pack(packed, 3)
        self._replace(node, packed)

    def _check_positions(self, value: ir.Value, name: str) -> None:
        """Reject other positions than those of tokens in their rows, which places say."""
        if any(source is not self._mask for source in data_inputs(value)):
            raise UnsupportedModel(f"Padding cannot be removed: the positions of {name} depend on a model input")

    def _packed_form(self, value: ir.Value, name: str) -> ir.Value:
        """A value of tokens in packed form; (B, S, W) values, or such that broadcast to it, are gathered."""
        if value in self._packed:
            return value
        if value.shape is None or len(value.shape) != 3:
            raise UnsupportedModel(
                f"Padding cannot be removed: {name} reads {value.name!r}, which may not have a value for each token"
            )
        gathered = self._once("gathered", value)
        self._pack(gathered, 3)
        return gathered

    def _attend_once(self, node: ir.Node) -> None:
        """The attention of one query for each row: keys and values go back to their rows."""
        for index in (1, 2):
            value = node.inputs[index]
            if value not in self._packed:
                raise UnsupportedModel(
                    f"Padding cannot be removed: the keys or values of {_name(node)} are not computed token by token "
                    "from a fused embedding or an earlier attention"
                )
            rows = self._places["rows"]  # not zeros at padding: a fully masked row attends to all its positions
            node.replace_input_with(
                index, self._node("Gather", f"{value.name}.in_rows", [self._once("table", value), rows], axis=0)
            )

    def _rotate(self, node: ir.Node) -> None:
        """A rotation by position reads the positions of the tokens that are kept."""
        inputs = functions.inputs(node)
        node.replace_input_with(0, self._packed_form(inputs["x"], _name(node)))
        at = functions.input_names(functions.ROTATE).index("positions")
        node.replace_input_with(at, self._once("ids", inputs["positions"]))
        self._pack(node.outputs[0], 3)

    def _take(self, node: ir.Node) -> None:
        """Keep a node that reads packed values, make it read single tokens, or restore rows for it."""
        if tokens.is_joining(node) and not any(tokens.is_mask(value, self._mask) for value in node.inputs):
            for index, value in enumerate(node.inputs):
                if value is not None and value not in self._packed and _is_of_tokens(value):
                    node.replace_input_with(index, self._packed_form(value, _name(node)))
        rank = tokens.rank_by_token(node, self._packed)
        if rank is not None:
            for value in node.outputs:
                self._pack(value, rank)
            return
        first = node.inputs[0]
        if first is not None and first in self._packed:
            positions = tokens.positions_read(node, self._packed[first])
            if positions:
                self._positions.update(positions)
                self._reads_positions = True
                self._read_positions(node, first)
                return
        if node.domain == "" and node.op_type == "Mul":
            for index, value in enumerate(node.inputs):
                if tokens.is_mask(value, self._mask) and (other := node.inputs[1 - index]) in self._packed:
                    node.replace_input_with(index, self._factor(other))
                    self._pack(node.outputs[0], self._packed[other])
                    self._masked.add(node.outputs[0])
                    return
        # Rows with zeros for padding are enough if only their shape is read, or if they were multiplied by the mask.
        read = [value for value in node.inputs if value is not None and value in self._packed]
        if node.domain != "" or not (node.op_type == "Shape" or self._masked.issuperset(read)):
            raise UnsupportedModel(
                f"Padding cannot be removed: {_name(node)} ({node.op_type}) may read the hidden states of padding"
            )
        for index, value in enumerate(node.inputs):
            if value is not None and value in self._packed:
                node.replace_input_with(index, self._once("restored", value))

    def _factor(self, value: ir.Value) -> ir.Value:
        """The mask of each token, (1, T, 1), in the type of a value."""
        of_tokens = self._once("ids", self._mask)
        column = self._node("Unsqueeze", f"{value.name}.mask", [of_tokens, self._ints((-1,))])
        return self._node("CastLike", f"{value.name}.factor", [column, value])

    def _read_positions(self, node: ir.Node, value: ir.Value) -> None:
        """Replace a node that reads positions by one that reads the tokens of those rows."""
        name, inputs = f"{_name(node)}.rows", [self._places["rows"], *node.inputs[1:]]
        rows = (
            self._node("Gather", name, inputs, axis=1)
            if node.op_type == "Gather"
            else self._node("Slice", name, inputs)
        )
        read = self._node("Gather", f"{_name(node)}.tokens", [self._once("table", value), rows], axis=0)
        self._replace(node, read)

    def _once(self, what: str, value: ir.Value) -> ir.Value:
        """What is computed from a value, once for all that read it."""
        if (what, value) not in self._made:
            self._made[what, value] = self._make(what, value, f"{value.name}.{what}")
        return self._made[what, value]

    def _make(self, what: str, value: ir.Value, name: str) -> ir.Value:
        if what == "ids":  # what broadcasts to (B, S) -> (1, T)
            whole = self._node("Expand", f"{name}.whole", [value, self._once("shape", self._mask)])
            flat = self._node("Reshape", f"{name}.flat", [whole, self._ints((-1,))])
            return self._node("Gather", name, [flat, self._places["kept"]], axis=0)
        if what == "shape":
            return self._node("Shape", name, [value])
        if what == "guard":  # whether a token's row has any key, (1, T, 1)
            attends = self._node("Cast", f"{name}.attends", [value], to=int(ir.DataType.BOOL))
            numbers = self._node("Cast", f"{name}.numbers", [attends], to=int(ir.DataType.INT64))
            count = self._node("ReduceSum", f"{name}.count", [numbers, self._ints((1,))], keepdims=1)
            any_key = self._node("Cast", f"{name}.any", [count], to=int(ir.DataType.BOOL))
            return self._node("Unsqueeze", name, [self._once("ids", any_key), self._ints((-1,))])
        if what == "own_guard":  # whether a token is a key, (1, T, 1)
            attends = self._node("Cast", f"{name}.attends", [value], to=int(ir.DataType.BOOL))
            return self._node("Unsqueeze", name, [self._once("ids", attends), self._ints((-1,))])
        if what == "gathered":  # what broadcasts to (B, S, W) -> (1, T, W)
            shape = self._once("shape", self._mask)
            target = self._node("Concat", f"{name}.target", [shape, self._ints((1,))], axis=0)
            whole = self._node("Expand", f"{name}.whole", [value, target])
            width = self._node("Shape", f"{name}.width", [value], start=2)
            by_token = self._node("Concat", f"{name}.by_token", [self._ints((-1,)), width], axis=0)
            flat = self._node("Reshape", f"{name}.flat", [whole, by_token])
            return self._node("Gather", name, [flat, self._places["kept"]], axis=0)
        if what == "table":  # (1, T, ...) -> (T, ...)
            return self._node("Squeeze", name, [value, self._ints((0,))])
        if what == "restored":  # (1, T, ...) -> (B, S, ...) with zeros where the mask is 0
            table = self._once("table", value)
            own_shape = self._node("Shape", f"{name}.shape", [table], start=1)
            row_shape = self._node("Concat", f"{name}.row_shape", [self._ints((1,)), own_shape], axis=0)
            zero = self._node("CastLike", f"{name}.zero", [self._ints(0), table])
            zeros = self._node("Expand", f"{name}.zeros", [zero, row_shape])
            with_zeros = self._node("Concat", f"{name}.with_zeros", [table, zeros], axis=0)
            return self._node("Gather", name, [with_zeros, self._places["places"]], axis=0)
        # the bias on the scores of a group
        places = [self._places[f"{what}_rows"], self._places[f"{what}_positions"]]
        return self._node("PackedBias", name, [value, *places], domain=functions.DOMAIN)

    def _replace(self, node: ir.Node, value: ir.Value) -> None:
        """Replace a node's only output."""
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
        self, kind: str, name: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes: float
    ) -> ir.Value:
        node = ir.node(kind, list(inputs), attributes, domain=domain, name=name)
        self._graph.append(node)
        node.outputs[0].name = name
        return node.outputs[0]


def _is_of_tokens(value: ir.Value) -> bool:
    """Whether a value may be (B, S, W), or broadcast to it."""
    floating = value.dtype is not None and value.dtype.is_floating_point()
    return floating and value.const_value is None and value.shape is not None and len(value.shape) == 3


def _key_mask(graph: ir.Graph) -> ir.Value:
    """The mask of all the attention layers."""
    masks = mask_input.key_masks(graph)
    if not masks:
        raise UnsupportedModel("Padding cannot be removed: the model has no SelfAttention of the fused form")
    mask = masks.pop()
    if masks or mask is None:
        raise UnsupportedModel("Padding cannot be removed: not all layers have the same key mask")
    if not data_inputs(mask):
        raise UnsupportedModel("Padding cannot be removed: no input of the model says which tokens are padding")
    return mask


def _name(node: ir.Node) -> str:
    return node.name or node.outputs[0].name or node.op_type
