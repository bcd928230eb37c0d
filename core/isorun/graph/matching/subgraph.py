"""What the fusions share: dense layers, closed sub-graphs, and putting a fused node in their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import HALVES, array, is_constant, sizes
from isorun.graph.matching.report import Refused
from isorun.graph.ops import functions

_LARGE = 1 << 16  # bytes; a constant above this is made when it is written
_KEEP_RANK = frozenset(
    ("Add", "Cast", "Div", "Erf", "Gelu", "LayerNormalization", "MatMul", "Mul", "Pow", "Split", "Sub", "Tanh")
)


@dataclass(frozen=True)
class Dense:
    """``output = input weight + bias``, the weight (rows, columns) and the bias (columns) being constants."""

    input: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    output: ir.Value


def dense(value: ir.Value | None) -> Dense | None:
    """The dense layer that a value comes from: ``MatMul``, with or without ``Add``."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain != "":
        return None
    if node.op_type == "MatMul":
        return _product(value, None, value)
    if node.op_type == "Add":
        for product, bias in (node.inputs, node.inputs[::-1]):
            if is_vector(bias) and (found := _product(product, bias, value)) is not None:
                return found
    return None


def _product(product: ir.Value | None, bias: ir.Value | None, output: ir.Value) -> Dense | None:
    node = None if product is None else product.producer()
    if node is None or node.domain != "" or node.op_type != "MatMul":
        return None
    rows, weight = node.inputs
    if rows is None or weight is None or is_constant(rows) or not is_constant(weight) or len(sizes(weight)) != 2:
        return None
    return Dense(rows, weight, bias, output)


def is_vector(value: ir.Value | None) -> bool:
    """Whether a value is a constant of one dimension."""
    return value is not None and is_constant(value) and len(sizes(value)) == 1


def scalar(value: ir.Value | None) -> float | None:
    """The number that a value is, where it is a constant of one element."""
    if value is None or not is_constant(value) or math.prod(sizes(value)) != 1:
        return None
    return float(array(value).reshape(()))


def rank(value: ir.Value) -> int | None:
    """The number of a value's dimensions, by the operators that keep it; what is found is noted on the values."""
    pending = [value]
    while pending:
        each = pending[-1]
        node = each.producer()
        if each.shape is not None or node is None or node.op_type not in _KEEP_RANK:
            pending.pop()
            continue
        before = [source for source in node.inputs if source is not None and not is_constant(source)]
        if node.op_type in ("LayerNormalization", "Split"):
            before = before[:1]
        unknown = [source for source in before if source.shape is None and _goes_on(source)]
        if unknown:
            pending.extend(unknown)
            continue
        pending.pop()
        ranks = [len(source.shape) for source in before if source.shape is not None]
        if not ranks:
            return None
        each.shape = ir.Shape([None] * max(ranks))
    return None if value.shape is None else len(value.shape)


def _goes_on(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in _KEEP_RANK


def dtype(value: ir.Value) -> ir.DataType:
    """A constant's type."""
    assert value.const_value is not None
    return value.const_value.dtype


def exits(
    entry: ir.Value, first: ir.Node, operators: frozenset[str], limit: int
) -> Iterator[tuple[ir.Value, set[ir.Node]]]:
    """The values through which alone everything passes that is computed from ``entry`` by way of ``first``.

    The sub-graph grows from ``first``, by nodes of these operators that take nothing but ``entry``, constants and
    what is in it already; whenever only one of its values is used outside, that value and the nodes are given.
    """
    nodes: set[ir.Node] = set()
    computed: dict[ir.Value, None] = {}

    def reach(node: ir.Node) -> list[ir.Node] | None:
        """What has to join for a node to be computed from the entry; ``None`` where it cannot be."""
        joining: dict[ir.Node, None] = {}
        stack = [node]
        while stack:
            each = stack.pop()
            if each in nodes or each in joining:
                continue
            if each.op_type not in operators or each.domain != "" or len(nodes) + len(joining) >= limit:
                return None
            joining[each] = None
            for value in each.inputs:
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
        computed.update((value, None) for each in joining for value in each.outputs)
        for each in joining:
            for value in each.outputs:
                pending.extend(use for use in value.consumers() if use not in nodes)
        leaving = [value for value in computed if is_used_outside(value, nodes)]
        if len(leaving) == 1:
            yield leaving[0], set(nodes)


def is_used_outside(value: ir.Value, nodes: set[ir.Node]) -> bool:
    """Whether anything but these nodes takes the value; to take its shape alone does not count."""
    return value.is_graph_output() or any(
        use not in nodes and use.op_type not in ("Shape", "Size") for use in value.consumers()
    )


def outside_casts(entry: ir.Value, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Where a part that computes in fp32 stands between casts from and to 16 bits: what is outside of these."""
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
    flat: int | None = None,
) -> None:
    """Compute a value by a fused operator from here on. What computed it before stays until it is swept away.

    Args:
        kind: the operator's name.
        inputs: its inputs, all computed before the value that it replaces; ``None`` for an optional one.
        attributes: its attributes.
        replaced: the value.
        flat: where that has batch and sequence as one dimension, its width; the operator keeps them apart.

    Raises:
        Refused: the floats that it takes are not all of one type.
    """
    types = {each.dtype for each in inputs if each is not None and each.dtype and each.dtype.is_floating_point()}
    if len(types) > 1:
        raise Refused(f"it mixes {' and '.join(sorted(each.name.lower() for each in types))}")
    producer = replaced.producer()
    assert producer is not None
    graph = producer.graph
    assert isinstance(graph, ir.Graph)
    node = ir.node(kind, list(inputs), attributes, domain=functions.DOMAIN, name=f"{producer.name}.{kind}")
    graph.insert_before(producer, node)
    output = node.outputs[0]
    if flat is not None:
        shape = constant(graph, "isorun.flat", ir.tensor(np.array([-1, flat], np.int64)))
        output = insert(producer, "Reshape", [output, shape])
    if types and replaced.dtype is not None and replaced.dtype not in types:
        output = insert(producer, "Cast", [output], to=int(replaced.dtype))
    output.type, output.shape = replaced.type, replaced.shape
    replace(replaced, output)


def insert(before: ir.Node, operator: str, inputs: Sequence[ir.Value], **attributes: int | list[int]) -> ir.Value:
    """A node of ONNX's own before another one; its value."""
    graph = before.graph
    assert isinstance(graph, ir.Graph)
    node = ir.node(operator, list(inputs), attributes)
    graph.insert_before(before, node)
    return node.outputs[0]


class Before:
    """Where nodes are put: before another one."""

    def __init__(self, node: ir.Node) -> None:
        self._node = node

    def node(self, label: str, kind: str, inputs: Sequence[ir.Value], **attributes: int | list[int]) -> ir.Value:
        del label  # nodes of a graph that is rewritten have no names
        return insert(self._node, kind, inputs, **attributes)

    def constant(self, label: str, array: np.ndarray) -> ir.Value:
        graph = self._node.graph
        assert isinstance(graph, ir.Graph)
        return constant(graph, f"isorun.{label}", ir.tensor(array))


def cast(before: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """A value as another type."""
    made = insert(before, "Cast", [value], to=int(dtype))
    made.type, made.shape = ir.TensorType(dtype), value.shape
    return made


def replace(old: ir.Value, new: ir.Value) -> None:
    """Use one value for another. An output of the graph keeps its name."""
    if old.is_graph_output():
        name = old.name
        old.name = f"{name}.unfused"
        new.name, new.type, new.shape = name, old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """A new weight; where the name is taken, a number is added to it."""
    unique, count = name, 0
    while unique in graph.initializers:
        count += 1
        unique = f"{name}.{count}"
    value = ir.Value(name=unique, const_value=tensor, shape=tensor.shape, type=ir.TensorType(tensor.dtype))  # type: ignore[arg-type]
    graph.register_initializer(value)
    return value


def lazy(make: Callable[[], np.ndarray], dtype: ir.DataType, shape: Sequence[int]) -> ir.TensorProtocol:
    """A weight that is made from others: at once where it is small, else whenever it is read."""
    if int(np.prod(shape)) * dtype.itemsize <= _LARGE:
        return ir.tensor(np.ascontiguousarray(make()))
    return ir.LazyTensor(lambda: ir.tensor(np.ascontiguousarray(make())), dtype=dtype, shape=ir.Shape(shape))


def integer(node: ir.Node, name: str, default: int) -> int:
    """A node's attribute."""
    return node.attributes[name].as_int() if name in node.attributes else default
