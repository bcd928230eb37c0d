"""Nodes that read single tokens: of a graph whose padding is removed, they read them among the kept ones.

What a node reads is kept, so its result does not depend on whether that position is padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from isorun.graph.analysis import tokens
from isorun.graph.analysis.evaluate import reads
from isorun.graph.io.nodes import needed
from isorun.graph.matching import subgraph
from isorun.graph.transforms.packed_values import PackedValues


class PackedReads(PackedValues):
    """Rewrites nodes that read packed values at certain positions, or their shape.

    Attributes:
        packed: the values that have the shape (1, T, ...) so far, each with its rank.
        positions: the numbers of the positions to keep in every row.
        computed: the positions to keep that the graph computes, each (N), counted over all B S.
    """

    def __init__(self, graph: ir.Graph, mask: ir.Value) -> None:
        super().__init__(graph, mask)
        self.packed: dict[ir.Value, int] = {}
        self.positions = {0}
        self.computed: list[ir.Value] = []
        self.reads_positions = False
        self._shapes: dict[ir.Value, ir.Shape | None] = {}  # those before packing

    def pack(self, value: ir.Value, rank: int) -> None:
        """Note that a value has the shape (1, T, ...)."""
        self.packed[value] = rank
        self._shapes[value], value.shape = value.shape, None

    def read(self, node: ir.Node) -> bool:
        """Make a node whose first input is a packed value read what it needs; whether it does."""
        value = node.inputs[0]
        if value is None or value not in self.packed:
            return False
        rank = self.packed[value]
        if _is_shape(node):
            return self._read_shape(node, value)
        if positions := tokens.positions_read(node, rank):
            self.positions.update(positions)
            self._read_at(node, value, self.layout["rows"], positions)
        elif tokens.is_flattening(node, rank) and self._reads_known_rows(node):
            flat = self.once("flat", self.layout["rows"])
            for reader in [use.node for use in node.outputs[0].uses()]:
                self.computed.append(self.once("flat", needed(reader.inputs[1])))
                self._read_at(reader, value, flat)
            self.graph.remove(node, safe=True)
        elif (index := tokens.computed_positions(node)) is not None and self._is_known(index):
            self.computed.append(self._flat_positions(node, index))
            self._read_at(node, value, self.layout["rows"])
        else:
            return False
        self.reads_positions = True
        return True

    def joined(self, values: Sequence[ir.Value], axis: int = 0) -> ir.Value:
        """Several values as one."""
        return self("Concat", *values, axis=axis) if len(values) > 1 else values[0]

    def _read_shape(self, node: ir.Node, value: ir.Value) -> bool:
        """(B, S, ...), if the sizes of the other dimensions are known: it does not depend on where tokens are."""
        shape = self._shapes[value]
        sizes = [] if shape is None or len(shape) != self.packed[value] else [*shape][2:]
        if node.graph is not self.graph or shape is None or not all(isinstance(size, int) for size in sizes):
            return False
        whole = self("Concat", self.once("shape", self.mask), [int(size) for size in sizes], axis=0)
        part = slice(node.attributes.get_int("start", 0), node.attributes.get_int("end", None))
        subgraph.replace_node(node, self("Gather", whole, [*range(self.packed[value])[part]], axis=0))
        return True

    def _reads_known_rows(self, flattening: ir.Node) -> bool:
        """Whether all that read a flattened value gather rows by numbers that are computed from inputs."""
        rows = flattening.outputs[0]
        readers = [use.node for use in rows.uses()]
        return not rows.is_graph_output() and all(
            (reader.domain, reader.op_type) == ("", "Gather")
            and reader.graph is self.graph
            and reader.inputs[0] is rows
            and reader.attributes.get_int("axis", 0) in (0, -2)
            and self._is_known(reader.inputs[1])
            for reader in readers
        )

    def _is_known(self, index: ir.Value | None) -> bool:
        """Whether an index depends neither on hidden states nor on where their tokens are."""
        for packed in self.packed:  # an index may depend on their shapes
            for node in [use.node for use in packed.uses() if _is_shape(use.node)]:
                self._read_shape(node, packed)
        unknown = {*self.packed, *self.layout.values()}
        pending: list[ir.Value | None] = [index]
        visited: set[ir.Value] = set()
        while pending:
            value = pending.pop()
            if value is None or value in visited:
                continue
            if value in unknown:
                return False
            visited.add(value)
            producer = value.producer()
            pending.extend(() if producer is None else reads(producer))
        return True

    def _flat_positions(self, node: ir.Node, index: ir.Value) -> ir.Value:
        """The positions that a GatherND reads, (N), counted over all B S."""
        shape = self.once("shape", self.mask)
        if node.attributes.get_int("batch_dims", 0):
            numbers = self("Range", 0, self("Gather", shape, 0, axis=0), 1)
            index = self("Concat", self("Unsqueeze", numbers, [1]), index, axis=1)
        steps = self("Concat", self("Gather", shape, [1], axis=0), [1], axis=0)
        whole = self("Mod", index, shape)  # negative numbers count from the end
        return self("ReduceSum", self("Mul", whole, steps), [1], keepdims=0)

    def _read_at(self, node: ir.Node, value: ir.Value, rows: ir.Value, positions: Sequence[int] = ()) -> None:
        """Make a node that reads positions of a packed value read where their tokens are, and then the tokens.

        The node stays in the graph: a check of its index may be added to it.

        Args:
            node: a Gather, Slice or GatherND.
            value: the packed value.
            rows: what the node reads instead: where each position's token is.
            positions: those that it reads by their numbers.
        """
        places = node.outputs[0]
        read = self("Gather", self.once("table", value), rows, axis=0)
        read.shape, read.type = places.shape, places.type
        subgraph.replace(places, read)
        places.shape, places.type = None, ir.TensorType(ir.DataType.INT64)
        needed(read.producer()).replace_input_with(1, places)
        node.replace_input_with(0, rows)
        # An axis that is counted from the end would be another one of the rows.
        if node.op_type == "Gather":
            node.attributes["axis"] = ir.AttrInt64("axis", 1 if positions else 0)
        elif node.op_type == "Slice":
            for slot, number in enumerate((positions[0], positions[-1] + 1, 1), start=1):
                node.replace_input_with(slot, self.integers([number]))
            node.resize_inputs(4)


def _is_shape(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == ("", "Shape")
