"""Values that padding removal adds to a graph: where tokens are, and what is computed from other values there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from isorun.graph.ops import functions

GROUPS = ("first", "second", "third", "fourth")
_OF_GROUP = ("", "_mask", "_positions", "_rows")
_LAYOUT = (
    *("kept", "rows", "places", "begin", "number", "length"),
    *(f"{group}{what}" for group in GROUPS for what in _OF_GROUP),
)


class PackedValues:
    """Adds nodes to a graph whose padding is removed.

    Args:
        graph: of the model.
        mask: the mask of all the attention layers.

    Attributes:
        layout: the outputs of ``PackedPlaces`` by name.
    """

    def __init__(self, graph: ir.Graph, mask: ir.Value) -> None:
        self.graph = graph
        self.mask = mask
        nodes = (value.name for node in graph.all_nodes() for value in node.outputs)
        self._names = Counter(filter(None, (*nodes, *graph.initializers, *(value.name for value in graph.inputs))))
        self._prefix = "padding"
        while any(name.startswith(f"{self._prefix}.") for name in self._names):
            self._prefix += "_"
        self.layout: dict[str, ir.Value] = {name: ir.Value(name=f"{self._prefix}.{name}") for name in _LAYOUT}
        self._made: dict[tuple[str, ir.Value], ir.Value] = {}
        self._constants: dict[tuple[int, ...] | int, ir.Value] = {}

    def once(self, what: str, value: ir.Value) -> ir.Value:
        """What is computed from a value, once for all that read it."""
        if (what, value) not in self._made:
            self._made[what, value] = self._make(what, value, f"{value.name}.{what}")
        return self._made[what, value]

    def _make(self, what: str, value: ir.Value, name: str) -> ir.Value:
        if what == "ids":  # what broadcasts to (B, S) -> (1, T)
            whole = self.node("Expand", f"{name}.whole", [value, self.once("shape", self.mask)])
            flat = self.node("Reshape", f"{name}.flat", [whole, self.ints((-1,))])
            return self.node("Gather", name, [flat, self.layout["kept"]], axis=0)
        if what == "flat":
            return self.node("Reshape", name, [value, self.ints((-1,))])
        if what == "shape":
            return self.node("Shape", name, [value])
        if what in ("guard", "causal_guard"):  # whether a token's row has any key, or any up to the token, (1, T, 1)
            attends = self.node("Cast", f"{name}.attends", [value], to=int(ir.DataType.BOOL))
            numbers = self.node("Cast", f"{name}.numbers", [attends], to=int(ir.DataType.INT64))
            if what == "guard":
                count = self.node("ReduceSum", f"{name}.count", [numbers, self.ints((1,))], keepdims=1)
            else:
                count = self.node("CumSum", f"{name}.count", [numbers, self.ints(1)])
            any_key = self.node("Cast", f"{name}.any", [count], to=int(ir.DataType.BOOL))
            return self.node("Unsqueeze", name, [self.once("ids", any_key), self.ints((-1,))])
        if what == "own_guard":  # whether a token is a key, (1, T, 1)
            attends = self.node("Cast", f"{name}.attends", [value], to=int(ir.DataType.BOOL))
            return self.node("Unsqueeze", name, [self.once("ids", attends), self.ints((-1,))])
        if what == "pair_guard":  # whether a token has any key in a mask of pairs, (1, T, 1)
            numbers = self.node("Cast", f"{name}.numbers", [value], to=int(ir.DataType.INT64))
            any_key = self.node("ReduceMax", f"{name}.any", [numbers], axes=[1, 3], keepdims=0)
            return self.node("Unsqueeze", name, [self.once("ids", any_key), self.ints((-1,))])
        if what == "gathered":  # what broadcasts to (B, S, W) -> (1, T, W)
            shape = self.once("shape", self.mask)
            target = self.node("Concat", f"{name}.target", [shape, self.ints((1,))], axis=0)
            whole = self.node("Expand", f"{name}.whole", [value, target])
            width = self.node("Shape", f"{name}.width", [value], start=-1)
            by_token = self.node("Concat", f"{name}.by_token", [self.ints((-1,)), width], axis=0)
            flat = self.node("Reshape", f"{name}.flat", [whole, by_token])
            return self.node("Gather", name, [flat, self.layout["kept"]], axis=0)
        if what.endswith("_positions"):  # of a group, from (1, S)
            return self.node("Gather", name, [self.once("flat", value), self.layout[what]], axis=0)
        if what == "table":  # (1, T, ...) -> (T, ...)
            return self.node("Squeeze", name, [value, self.ints((0,))])
        if what == "restored":  # (1, T, ...) -> (B, S, ...) with zeros where the mask is 0
            table = self.once("table", value)
            own_shape = self.node("Shape", f"{name}.shape", [table], start=1)
            row_shape = self.node("Concat", f"{name}.row_shape", [self.ints((1,)), own_shape], axis=0)
            zero = self.node("CastLike", f"{name}.zero", [self.ints(0), table])
            zeros = self.node("Expand", f"{name}.zeros", [zero, row_shape])
            with_zeros = self.node("Concat", f"{name}.with_zeros", [table, zeros], axis=0)
            return self.node("Gather", name, [with_zeros, self.layout["places"]], axis=0)
        # the bias on the scores of a group, or its mask of pairs
        places = [self.layout[f"{what}_rows"], self.layout[f"{what}_positions"]]
        return self.node("PackedBias", name, [value, *places], domain=functions.DOMAIN)

    def ints(self, values: tuple[int, ...] | int) -> ir.Value:
        """A constant, int64: a scalar or of one dimension."""
        if values not in self._constants:
            parts = values if isinstance(values, tuple) else ("scalar", values)
            name = f"{self._prefix}.constant.{'_'.join(map(str, parts))}"
            self._constants[values] = ir.val(name, const_value=ir.tensor(np.array(values, np.int64), name=name))
            self.graph.initializers.add(self._constants[values])
        return self._constants[values]

    def node(
        self, kind: str, name: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes: float | list[int]
    ) -> ir.Value:
        self._names[name] += 1
        while self._names[name] > 1:
            name = f"{name}.{self._names[name]}"
            self._names[name] += 1
        node = ir.node(kind, list(inputs), attributes, domain=domain, name=name)
        self.graph.append(node)
        node.outputs[0].name = name
        return node.outputs[0]
