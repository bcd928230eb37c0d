"""Where an attention is: the part of a graph between the dense layers around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import Samples, is_constant, sizes
from isorun.graph.matching import subgraph
from isorun.graph.matching.report import Refused
from isorun.graph.matching.subgraph import Dense

_NODES = 80  # more than any spelling of one attention has
_SHAPE_ALONE = ("Shape", "Size")


@dataclass(frozen=True)
class Place:
    """The sub-graph of one attention.

    Attributes:
        root: the node that it was found by.
        context: what it gives, before the output projection.
        layers: the dense layers before it, in no particular order, all of one input: three, or fewer that give
            several of queries, keys and values side by side.
        sides: what else enters it and is no constant: masks, biases, numbers and shapes.
        flat: whether batch and sequence are one dimension around it.
    """

    root: ir.Node
    context: ir.Value
    layers: tuple[Dense, ...]
    sides: tuple[ir.Value, ...]
    flat: bool

    @property
    def hidden(self) -> ir.Value:
        """What the projections are of."""
        return self.layers[0].input

    @property
    def width(self) -> int:
        """How wide queries, keys and values are, each."""
        return sum(sizes(layer.weight)[1] for layer in self.layers) // 3

    def around(self, batch: int, length: int) -> Samples:
        """Zeros for what the dense layers before it take and give."""
        rows = (batch * length,) if self.flat else (batch, length)
        found = {}
        for layer in self.layers:
            into, out = sizes(layer.weight)
            found[layer.input] = np.zeros((*rows, into), np.float32)
            found[layer.output] = np.zeros((*rows, out), np.float32)
        return found


def find(root: ir.Node) -> Place:
    """Where an attention is, by its ``Softmax`` or ``Attention``.

    Raises:
        Refused: there are other layers around it, or something else takes what is computed inside.
    """
    place = _place(root)
    rank = subgraph.rank(place.hidden)
    if rank not in (2, 3):
        raise Refused(f"{place.hidden.name!r}, which it projects, has {rank or 'unknown'} dimensions; 2 or 3 are due")
    place = replace(place, flat=rank == 2)
    if place.context.shape is None:
        place.context.shape = ir.Shape([None] * rank)
    return place


def _place(root: ir.Node) -> Place:
    """The sub-graph between the dense layers around an attention.

    Raises:
        Refused: there are other layers around it, or something else takes what is computed inside.
    """
    context = _context(root)
    projections: dict[ir.Value, Dense] = {}
    nodes: dict[ir.Node, None] = {}
    stack = [context]
    while stack:
        value = stack.pop()
        node = value.producer()
        if node is None or node in nodes or value in projections or is_constant(value):
            continue
        layer = subgraph.dense(value)
        if layer is not None:
            projections[value] = layer
            continue
        if node.op_type in _SHAPE_ALONE:
            continue
        nodes[node] = None
        stack.extend(each for each in node.inputs if each is not None)
    inside = _depend_on(set(projections), nodes)
    sources = {each.input for each in projections.values()}
    if not 1 <= len(projections) <= 3:
        raise Refused(f"it has {len(projections)} dense layers before it; queries, keys and values are at most 3")
    if len(sources) != 1:
        names = ", ".join(sorted(repr(each.name) for each in sources))
        raise Refused(f"its projections are of different values ({names}): it is no self-attention")
    columns = [sizes(each.weight)[1] for each in projections.values()]
    if any(3 * each % sum(columns) for each in columns):
        widths = ", ".join(map(str, sorted(columns)))
        raise Refused(f"its dense layers are {widths} wide: queries, keys and values are not all as wide")
    for layer in projections.values():
        if subgraph.is_used_outside(layer.output, inside):
            raise Refused(f"something else uses its projection {layer.output.name!r}")
    for node in inside:
        for value in node.outputs:
            if value is not context and subgraph.is_used_outside(value, inside):
                what = "its probabilities" if node is root else f"{value.name!r}, which is computed inside it"
                raise Refused(f"something else uses {what}")
    sides = {
        value: None
        for node in inside
        for value in node.inputs
        if value is not None and not is_constant(value) and value not in projections and value.producer() not in inside
    }
    return Place(root, context, tuple(projections.values()), tuple(sides), flat=False)


def _context(root: ir.Node) -> ir.Value:
    """What the dense layer after an attention takes."""
    found: dict[ir.Value, None] = {}
    seen: set[ir.Value] = set()
    stack = [root.outputs[0]]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.is_graph_output():
            where = "its probabilities are" if value is root.outputs[0] else f"{value.name!r}, which depends on it, is"
            raise Refused(f"{where} an output of the graph")
        if len(seen) > _NODES:
            raise Refused("there is no dense layer after it")
        for use in value.consumers():
            if use.op_type in _SHAPE_ALONE:
                continue
            if any((layer := subgraph.dense(out)) is not None and layer.input is value for out in use.outputs):
                found[value] = None
            else:
                stack.extend(use.outputs)
    if len(found) != 1:
        raise Refused(
            "there is no dense layer after it"
            if not found
            else "something else uses what is computed inside it: it reaches several dense layers"
        )
    return next(iter(found))


def _depend_on(values: set[ir.Value], nodes: dict[ir.Node, None]) -> set[ir.Node]:
    """Which of these nodes' results depend on the data of these values."""
    found: set[ir.Node] = set()
    stack = list(values)
    while stack:
        for use in stack.pop().consumers():
            if use in nodes and use not in found and use.op_type not in _SHAPE_ALONE:
                found.add(use)
                stack.extend(use.outputs)
    return found
