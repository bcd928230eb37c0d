"""Values that padding removal adds to a graph: where tokens are, and what is computed from other values there."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.matching import subgraph
from isorun.graph.ops import functions
from isorun.graph.ops.adding import Nodes

_INT64 = int(ir.DataType.INT64)
GROUPS = ("first", "second", "third", "fourth")
_OF_GROUP = ("", "_mask", "_positions", "_rows")
_LAYOUT = (
    *("kept", "rows", "places", "begin", "number", "length"),
    *(f"{group}{what}" for group in GROUPS for what in _OF_GROUP),
)


class PackedValues(Nodes):
    """Adds nodes to the end of a graph whose padding is removed, whose nodes are sorted afterwards.

    Args:
        graph: of the model.
        mask: the mask of all the attention layers.

    Attributes:
        layout: the outputs of ``PackedPlaces`` by name.
    """

    def __init__(self, graph: ir.Graph, mask: ir.Value) -> None:
        self.graph = graph
        self.mask = mask
        computed = (value.name for node in graph.all_nodes() for value in node.outputs)
        names = {*computed, *graph.initializers, *(value.name for value in graph.inputs)}
        self._prefix = "padding"
        while any(name and name.startswith(f"{self._prefix}.") for name in names):
            self._prefix += "_"
        self._count = 0
        self.layout: dict[str, ir.Value] = {name: ir.Value(name=f"{self._prefix}.{name}") for name in _LAYOUT}
        self._made: dict[tuple[str, ir.Value], ir.Value] = {}

    def once(self, what: str, value: ir.Value) -> ir.Value:
        """What is computed from a value, once for all that read it."""
        if (what, value) not in self._made:
            self._made[what, value] = self._make(what, value)
        return self._made[what, value]

    def _make(self, what: str, value: ir.Value) -> ir.Value:
        op: Nodes = self
        match what:
            case "ids":  # what broadcasts to (B, S) -> (1, T)
                whole = op("Expand", value, self.once("shape", self.mask))
                return op("Gather", op("Reshape", whole, [-1]), self.layout["kept"], axis=0)
            case "flat":
                return op("Reshape", value, [-1])
            case "shape":
                return op("Shape", value)
            case "attends":  # whether a token is a key
                return op("Cast", value, to=int(ir.DataType.BOOL))
            case "guard":  # whether a token's row has any key, (1, T, 1)
                count = op("ReduceSum", op("Cast", self.once("attends", value), to=_INT64), [1], keepdims=1)
                return self._column(op("Cast", count, to=int(ir.DataType.BOOL)))
            case "causal_guard":  # whether it has any up to the token, (1, T, 1)
                count = op("CumSum", op("Cast", self.once("attends", value), to=_INT64), 1)
                return self._column(op("Cast", count, to=int(ir.DataType.BOOL)))
            case "own_guard":  # whether a token is a key, (1, T, 1)
                return self._column(self.once("attends", value))
            case "pair_guard":  # whether a token has any key in a mask of pairs, (1, T, 1)
                return self._column(op("ReduceMax", op("Cast", value, to=_INT64), axes=[1, 3], keepdims=0))
            case "gathered":  # what broadcasts to (B, S, W) -> (1, T, W)
                whole = op("Expand", value, op("Concat", self.once("shape", self.mask), [1], axis=0))
                flat = op("Reshape", whole, op("Concat", [-1], op("Shape", value, start=-1), axis=0))
                return op("Gather", flat, self.layout["kept"], axis=0)
            case "table":  # (1, T, ...) -> (T, ...)
                return op("Squeeze", value, [0])
            case "restored":  # (1, T, ...) -> (B, S, ...) with zeros where the mask is 0
                table = self.once("table", value)
                row = op("Expand", op("CastLike", 0, table), op("Concat", [1], op("Shape", table, start=1), axis=0))
                return op("Gather", op("Concat", table, row, axis=0), self.layout["places"], axis=0)
        if what.endswith("_positions"):  # of a group, from (1, S)
            return op("Gather", self.once("flat", value), self.layout[what], axis=0)
        # the bias on the scores of a group, or its mask of pairs
        places = self.layout[f"{what}_rows"], self.layout[f"{what}_positions"]
        return op("PackedBias", value, *places, domain=functions.DOMAIN)

    def _column(self, of_tokens: ir.Value) -> ir.Value:
        """(B, S) -> (1, T, 1)."""
        return self("Unsqueeze", self.once("ids", of_tokens), [-1])

    def constant(self, label: str, content: np.ndarray) -> ir.Value:
        name = f"{self._prefix}.{label}"
        return self.graph.initializers.get(name) or subgraph.constant(self.graph, name, ir.tensor(content))

    def place(self, node: ir.Node) -> None:
        self._count += 1
        node.name = node.outputs[0].name = f"{self._prefix}.{self._count}.{node.op_type}"
        self.graph.append(node)
