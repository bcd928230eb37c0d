"""Helpers for pattern matching and rewriting: dense layers, closed subgraphs, insertion of fused nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import tokens
from isorun.graph.analysis.evaluate import HALVES, array, is_constant, sizes
from isorun.graph.io.nodes import needed
from isorun.graph.matching.report import CannotFuse
from isorun.graph.ops import functions
from isorun.graph.ops.adding import Nodes

_LARGE = 1 << 16  # bytes; a larger constant is computed when it is written
_MOVES = frozenset(("Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"))


@dataclass(frozen=True)
class DenseLayer:
    """``output = input @ weight + bias``, with a constant weight (rows, columns) and bias (columns).

    The weight is zero but for a block of each of ``groups`` on its diagonal.
    """

    input: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    output: ir.Value
    groups: int = 1

    @property
    def product(self) -> ir.Value:
        """The output before the bias is added."""
        add = self.output.producer()
        if self.bias is None or add is None:
            return self.output
        return next(value for value in add.inputs if value is not None and value is not self.bias)


def dense(value: ir.Value | None) -> DenseLayer | None:
    """The dense layer that computes a value: ``MatMul``, with or without ``Add``."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain != "":
        return None
    if node.op_type == "MatMul":
        return _product(value, None, value)
    if node.op_type == "Add":
        for product, bias in (node.inputs, node.inputs[::-1]):
            layer = _product(product, bias, value) if is_vector(bias) else None
            if layer is not None and is_constant(bias) and sizes(bias) == sizes(layer.weight)[1:]:
                return layer
    return None


def _product(product: ir.Value | None, bias: ir.Value | None, output: ir.Value) -> DenseLayer | None:
    node = None if product is None else product.producer()
    if node is None or node.domain != "" or node.op_type != "MatMul":
        return None
    rows, weight = node.inputs
    if rows is None or is_constant(rows) or not is_constant(weight) or len(sizes(weight)) != 2:
        return None
    return DenseLayer(rows, weight, bias, output)


def projection(value: ir.Value | None) -> DenseLayer | None:
    """The dense layer that computes a value, or those of the groups of its width, as one with zeros elsewhere.

    The weight of groups is not in the graph: only the output can be read there.
    """
    layer, node = dense(value), None if value is None else value.producer()
    if layer is not None or value is None or node is None or node.domain != "":
        return layer
    bias = next(filter(is_vector, node.inputs), None) if node.op_type == "Add" else None
    product = value if bias is None else next(operand for operand in node.inputs if operand is not bias)
    joined = None if product is None else product.producer()
    if joined is None or joined.op_type != "Concat" or joined.attributes.get_int("axis", 0) != -1:
        return None
    layers = [layer for operand in joined.inputs if (layer := dense(operand)) is not None and layer.bias is None]
    split = layers[0].input.producer() if layers else None
    if split is None or split.op_type != "Split" or [layer.input for layer in layers] != list(split.outputs):
        return None
    weights = [layer.weight for layer in layers]
    if split.attributes.get_int("axis", 0) != -1 or len({tuple(sizes(weight)) for weight in weights}) > 1:
        return None
    tensor = lazy(lambda: _block_diagonal(map(array, weights)), dtype(weights[0]), np.sum([*map(sizes, weights)], 0))
    weight = ir.val(weights[0].name, const_value=tensor)
    return DenseLayer(needed(split.inputs[0]), weight, bias, value, len(layers))


def _block_diagonal(blocks: Iterable[np.ndarray]) -> np.ndarray:
    total = np.zeros((0, 0))
    for block in blocks:
        corners = np.zeros((len(total), block.shape[1])), np.zeros((len(block), total.shape[1]))
        total = np.block([[total, corners[0]], [corners[1], block]]).astype(block.dtype)
    return total


def part(value: ir.Value) -> tuple[DenseLayer, int, int] | None:
    """The dense layer of whose output a value is some columns, and the first and the end of these; ``None`` if it is
    another value, or if anything else reads the output."""
    node = value.producer()
    whole = None if node is None else node.inputs[0]
    layer = dense(whole)
    if node is None or whole is None or layer is None or whole.is_graph_output():
        return None
    if any(use.op_type not in ("Split", "Slice", "Shape") for use in whole.consumers()):
        return None
    width, last = sizes(layer.weight)[1], (rank(whole) or 0) - 1
    if not all(operand is None or is_constant(operand) for operand in node.inputs[1:]):
        return None
    if node.op_type == "Split" and node.attributes.get_int("axis", 0) in (-1, last):
        widths, index = tokens.split_sizes(node, width), value.index() or 0
        return layer, sum(widths[:index]), sum(widths[: index + 1])
    if node.op_type == "Slice" and len(node.inputs) > 3:
        bounds = [[] if operand is None else array(operand).reshape(-1).tolist() for operand in node.inputs[1:]]
        if (
            all(len(bound) == 1 for bound in bounds[:3])
            and bounds[2][0] in (-1, last)
            and bounds[3:] in ([], [[]], [[1]])
        ):
            begin, end, _ = slice(bounds[0][0], bounds[1][0]).indices(width)
            return layer, begin, end
    return None


def is_vector(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Whether a value is a one-dimensional constant."""
    return is_constant(value) and len(sizes(value)) == 1


def scalar(value: ir.Value | None) -> float | None:
    """A one-element constant as a number; ``None`` for any other value."""
    if not is_constant(value) or math.prod(sizes(value)) != 1:
        return None
    return float(array(value).reshape(()))


def rank(value: ir.Value) -> int | None:
    """The number of a value's dimensions; ``None`` if it is unknown."""
    if is_constant(value):
        return len(sizes(value))
    return None if value.shape is None else len(value.shape)


def dtype(value: ir.Value) -> ir.DataType:
    """A constant's type."""
    return needed(value.const_value).dtype


def exits(
    entry: ir.Value, first: ir.Node, operators: frozenset[str], limit: int
) -> Iterator[tuple[ir.Value, set[ir.Node]]]:
    """Yield the single-exit subgraphs that compute from ``entry`` and contain ``first``, smallest first.

    The subgraph grows from ``first`` by nodes with one of these operators that read only ``entry``, constants and
    values of the subgraph. Whenever exactly one of its values is used outside, that value and the nodes are yielded.
    """
    nodes: set[ir.Node] = set()
    computed: dict[ir.Value, None] = {}

    def reach(node: ir.Node) -> list[ir.Node] | None:
        """The nodes to add so that a node is computed from the entry; ``None`` if it cannot be."""
        joining: dict[ir.Node, None] = {}
        stack = [node]
        while stack:
            current = stack.pop()
            if current in nodes or current in joining:
                continue
            if current.op_type not in operators or current.domain != "" or len(nodes) + len(joining) >= limit:
                return None
            joining[current] = None
            for value in current.inputs:
                if value is None or value is entry or value in computed or is_constant(value):
                    continue
                producer = value.producer()
                if producer is None:
                    return None
                stack.append(producer)
        return list(joining)

    pending: list[ir.Node] = [first]
    while pending:
        node = pending.pop(0)
        joining = reach(node)
        if joining is None or not joining:
            continue
        nodes.update(joining)
        results = [value for joined in joining for value in joined.outputs]
        computed.update(dict.fromkeys(results))
        pending.extend(use for value in results for use in value.consumers() if use not in nodes)
        leaving = [value for value in computed if is_used_outside(value, nodes)]
        if len(leaving) == 1:
            yield leaving[0], set(nodes)


def is_used_outside(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
    """Whether a node outside these reads the value's data (reading its shape does not count)."""
    return value.is_graph_output() or any(use not in nodes and not _reads_shape(use) for use in value.consumers())


def _reads_shape(node: ir.Node) -> bool:
    """Whether a node's result depends on no more than shapes, or only the shape of its result is read."""
    if node.op_type in ("Shape", "Size"):
        return True
    return node.op_type in _MOVES and not any(is_used_outside(value, ()) for value in node.outputs)


def outside_casts(entry: ir.Value, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The input and output of a part that computes in fp32, moved outside casts from and to a 16-bit type."""
    cast, uses = entry.producer(), value.consumers()
    source = None if cast is None or cast.op_type != "Cast" else cast.inputs[0]
    if source is None or source.dtype not in HALVES or len(uses) != 1 or value.is_graph_output():
        return entry, value
    if uses[0].op_type != "Cast" or uses[0].attributes["to"].as_int() != source.dtype:
        return entry, value
    return source, uses[0].outputs[0]


def put(
    kind: str,
    inputs: Sequence[ir.Value | None],
    attributes: dict[str, int | float],
    replaced: ir.Value,
    shape: list[int] | None = None,
) -> None:
    """Replace a value with a fused operator's output. The nodes that computed it are left for a later cleanup.

    Args:
        kind: the operator's name.
        inputs: its inputs, all computed before the value that it replaces; ``None`` for an optional one.
        attributes: its attributes.
        replaced: the value.
        shape: what the operator's output is reshaped to: the value may have batch and sequence in one dimension, or
            the heads of an attention in one of their own.

    Raises:
        CannotFuse: the floating-point inputs differ in type.
    """
    types = {value.dtype for value in inputs if value is not None and value.dtype and value.dtype.is_floating_point()}
    if len(types) > 1:
        raise CannotFuse(f"it mixes {' and '.join(sorted(dtype.name.lower() for dtype in types))}")
    producer = needed(replaced.producer())
    op = Before(producer)
    name = f"{producer.name}.{kind}" + (f".{replaced.index()}" if len(producer.outputs) > 1 else "")
    node = ir.node(kind, list(inputs), attributes, domain=functions.DOMAIN, name=name)
    producer.prepend(node)
    output = node.outputs[0]
    if shape is not None:
        output = op("Reshape", output, shape)
    if types and replaced.dtype is not None and replaced.dtype not in types:
        output = op("Cast", output, to=int(replaced.dtype))
    output.type, output.shape = replaced.type, replaced.shape
    replace(replaced, output)


class Before(Nodes):
    """Inserts nodes before another node."""

    def __init__(self, node: ir.Node) -> None:
        self._node = node
        self.graph = graph_of(node)

    def place(self, node: ir.Node) -> None:
        self._node.prepend(node)

    def constant(self, label: str, content: np.ndarray) -> ir.Value:
        name, tensor = f"isorun.{label}", ir.tensor(content)
        known = self.graph.initializers.get(name)
        if is_constant(known) and dtype(known) == tensor.dtype and np.array_equal(array(known), content):
            return known
        return constant(self.graph, name, tensor)

    def dense(self, rows: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
        """Insert a dense layer, with or without a bias, and return its output."""
        product = self("MatMul", rows, weight)
        return product if bias is None else self("Add", product, bias)

    def columns(self, value: ir.Value, begin: int, end: int) -> ir.Value:
        """Some columns of a constant as another one."""
        tensor = needed(ir.convenience.get_const_tensor(value))
        shape = (*tensor.shape.numpy()[:-1], end - begin)
        part = lazy(lambda: tensor.numpy()[..., begin:end], tensor.dtype, shape)
        return constant(self.graph, f"{value.name}.columns.{begin}", part)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Insert a cast, and return its output."""
        result = self("Cast", value, to=int(dtype))
        result.type, result.shape = ir.TensorType(dtype), value.shape
        return result


def graph_of(node: ir.Node) -> ir.Graph:
    """The graph that a node is in."""
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def replace(old: ir.Value, new: ir.Value) -> None:
    """Replace all uses of a value. An output of the graph keeps its name; the new value has a type and shape."""
    new.type, new.shape = new.type or old.type, new.shape or old.shape
    if old.is_graph_output():
        name = old.name
        old.name = f"{name}.unfused"
        new.name, new.type, new.shape = name, old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def replace_node(node: ir.Node, new: ir.Value) -> None:
    """Replace the first output of a node, and remove the node."""
    replace(node.outputs[0], new)
    graph_of(node).remove(node, safe=True)


def constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Add an initializer; a number is appended if the name is taken."""
    unique, count = name, 0
    while unique in graph.initializers:
        count += 1
        unique = f"{name}.{count}"
    value = ir.val(unique, const_value=tensor)
    graph.register_initializer(value)
    return value


def lazy(make: Callable[[], np.ndarray], dtype: ir.DataType, shape: Sequence[int]) -> ir.TensorProtocol:
    """A weight computed from others: immediately if it is small, else whenever it is read."""
    if int(np.prod(shape)) * dtype.itemsize <= _LARGE:
        return ir.tensor(np.asarray(make(), order="C"))
    return ir.LazyTensor(lambda: ir.tensor(np.asarray(make(), order="C")), dtype=dtype, shape=ir.Shape(shape))


def converted(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    """A weight in another type, as :func:`lazy`."""
    return lazy(lambda: tensor.numpy().astype(dtype.numpy()), dtype, tensor.shape.numpy())
