"""Validation of a model's structure when it is read. All later passes rely on it.

Nodes have the inputs that they need, each value has one definition, no node depends on its own result, functions are
not recursive, and their expansion is bounded. Nodes out of order, which ONNX forbids and most runtimes
accept, are sorted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx

from isorun.errors import InvalidModel
from isorun.graph.io import nodes
from isorun.graph.io.nodes import label

MAX_NODES = 100_000
"""The maximum number of nodes after inlining functions; a few nested functions can expand to 2^40."""

MAX_ELEMENTS = 2**31
"""The maximum number of elements of an input whose dimensions are fixed: a feed of that size could not be made."""

_Key = tuple[str, str, str]  # domain, name, overload
GraphLike = onnx.GraphProto | onnx.FunctionProto


def tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Every tensor of a model: in graphs, functions, default attributes and training information, at any depth."""
    training = [graph for info in proto.training_info for graph in (info.initialization, info.algorithm)]
    graphs = with_subgraphs(proto.graph, *proto.functions, *training)
    return [tensor for graph in graphs for tensor in _tensors(graph)]


def with_subgraphs(*graphs: GraphLike) -> Iterator[GraphLike]:
    """Graphs and functions, and the graphs in their nodes, at any depth."""
    pending = [*graphs]
    while pending:
        graph = pending.pop()
        yield graph
        pending += _subgraphs(graph)


def check(proto: onnx.ModelProto, name: str) -> bool:
    """Check a model's structure and sort nodes that are out of order, in place.

    Args:
        proto: the model.
        name: its name in error messages.

    Returns:
        Whether nodes were out of order.

    Raises:
        InvalidModel: a node lacks an input that it needs, two values have the same name, a node reads a value that is
            not defined or depends on the node itself, a function is recursive, functions expand to more than
            :data:`MAX_NODES` nodes, or two versions of a domain are imported.
    """
    functions: dict[_Key, onnx.FunctionProto] = {}
    for node, opsets in _all_nodes(proto, name):
        nodes.check(name, node, opsets)
    was_sorted = False
    for function in proto.functions:
        key = _key(function.domain, function.name, function.overload)
        if key in functions:
            raise InvalidModel(f"{name} defines the function {_qualified(key)} twice")
        functions[key] = function
        where = f"{name}, function {_qualified(key)},"
        was_sorted |= _check_graph(where, function, list(function.input), list(function.output), frozenset())
    was_sorted |= _check_main(name, proto.graph, frozenset())  # not training_info: no inference runtime executes it
    if functions:
        _check_expansion(proto, functions, name)
    return was_sorted


def _all_nodes(proto: onnx.ModelProto, name: str) -> Iterator[tuple[onnx.NodeProto, dict[str, int]]]:
    """The nodes of graphs and functions, in subgraphs too, with the opsets that they have."""
    opsets_of: list[tuple[GraphLike, dict[str, int]]] = [(proto.graph, _opsets(proto, name))]
    opsets_of += [(function, _opsets(function, f"{name}, function {function.name},")) for function in proto.functions]
    for graph, opsets in opsets_of:
        yield from ((node, opsets) for part in with_subgraphs(graph) for node in part.node)


def _opsets(proto: onnx.ModelProto | onnx.FunctionProto, name: str) -> dict[str, int]:
    """The version of each domain. Runtimes differ in which they choose if there are two."""
    opsets: dict[str, int] = {}
    for opset in proto.opset_import:
        version = opsets.setdefault(nodes.domain(opset.domain), opset.version)
        if version != opset.version:
            raise InvalidModel(
                f"{name} imports versions {version} and {opset.version} of the domain {opset.domain!r}. Keep the one "
                "that its nodes were written in"
            )
    return opsets


def _subgraphs(graph: GraphLike) -> list[onnx.GraphProto]:
    return [inner for attribute in _attributes(graph) for inner in _graphs(attribute)]


def _attributes(graph: GraphLike) -> Iterator[onnx.AttributeProto]:
    """Those of its nodes, and the defaults of a function's."""
    if isinstance(graph, onnx.FunctionProto):
        yield from graph.attribute_proto
    for node in graph.node:
        yield from node.attribute


def _tensors(graph: GraphLike) -> Iterator[onnx.TensorProto]:
    """The tensors of a graph, without those of subgraphs."""
    if isinstance(graph, onnx.GraphProto):
        yield from graph.initializer
        yield from _tensors_of(graph.sparse_initializer)
    for attribute in _attributes(graph):  # regardless of `type`, which some readers ignore
        if attribute.HasField("t"):
            yield attribute.t
        if attribute.HasField("sparse_tensor"):
            yield from _tensors_of([attribute.sparse_tensor])
        yield from attribute.tensors
        yield from _tensors_of(attribute.sparse_tensors)


def _check_main(name: str, graph: onnx.GraphProto, outer: frozenset[str]) -> bool:
    """Check the main graph or a subgraph. Returns whether nodes were out of order."""
    inputs = [value.name for value in graph.input]
    weights = [tensor.name for tensor in graph.initializer]
    weights += [tensor.values.name for tensor in graph.sparse_initializer]
    for names in (inputs, weights):
        if repeated := _repeated(names):
            raise InvalidModel(f"{name} is not a valid graph: two values have the name {repeated!r}")
    for value in graph.input:
        size = math.prod(max(dimension.dim_value, 1) for dimension in value.type.tensor_type.shape.dim)
        if size > MAX_ELEMENTS:
            raise InvalidModel(
                f"{name} declares the input {value.name!r} with {size:,} elements, maximum {MAX_ELEMENTS:,}"
            )
    outputs = [value.name for value in graph.output]
    return _check_graph(name, graph, [*inputs, *weights], outputs, outer)


def _check_graph(name: str, graph: GraphLike, inputs: list[str], outputs: list[str], outer: frozenset[str]) -> bool:
    """Check the values that the nodes of a graph read and compute. Returns whether nodes were out of order.

    Args:
        inputs: the graph's inputs and initializers.
        outputs: its outputs.
        outer: the values of enclosing graphs.
    """
    known = {"", *outer, *inputs}
    distinct = len(known)
    in_order = True
    for node in graph.node:
        if in_order and not known.issuperset(node.input):
            in_order = False
        known.update(results := node.output)
        distinct += len(results)
    if len(known) != distinct:  # repeated names, or omitted outputs and names of enclosing graphs, which are valid
        computed = (value for node in graph.node for value in node.output if value)
        if repeated := _repeated([*dict.fromkeys(inputs), *computed]):
            raise InvalidModel(f"{name} is not a valid graph: two values have the name {repeated!r}")
    for value in outputs:
        if value not in known:
            raise InvalidModel(f"{name} is not a valid graph: its output {value!r} is not defined")
    subgraphs = _subgraphs(graph)
    was_sorted = bool(subgraphs or not in_order) and _sort(name, graph, known)
    for subgraph in subgraphs:
        was_sorted |= _check_main(name, subgraph, frozenset(known))
    return was_sorted


def _repeated(names: Iterable[str]) -> str:
    """The first name that occurs twice; empty if none does."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


def _sort(name: str, graph: GraphLike, known: set[str]) -> bool:
    """Sort the nodes of a graph topologically if they are out of order. Returns whether they were."""
    producers = {value: index for index, node in enumerate(graph.node) for value in node.output if value}
    needed: dict[int, dict[int, None]] = {}
    for index, node in enumerate(graph.node):
        sources = _sources_of(node)
        for value in sources:
            if value not in known:
                raise InvalidModel(f"{name} is not a valid graph: {label(node)} reads {value!r}, which is not defined")
        needed[index] = {producers[value]: None for value in sources if value in producers}
    if all(before < index for index, others in needed.items() for before in others):
        return False
    try:
        order = list(TopologicalSorter(needed).static_order())
    except CycleError as error:
        node = graph.node[error.args[1][0]]
        raise InvalidModel(f"{name} is not a valid graph: {label(node)} depends on its own result (a cycle)") from None
    rank = {index: position for position, index in enumerate(order)}
    positions = {value: rank[index] for value, index in producers.items()}

    def position(node: Any) -> int:
        return next((positions[value] for value in node.output if value), len(rank))

    graph.node.sort(key=position)
    return True


def _sources_of(node: onnx.NodeProto) -> dict[str, None]:
    """The names that a node, including its subgraphs, reads from its graph or enclosing graphs."""
    names = dict.fromkeys(value for value in node.input if value)
    for attribute in node.attribute:
        for graph in _graphs(attribute):
            local = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            local.update(tensor.values.name for tensor in graph.sparse_initializer)
            local.update(value for inner in graph.node for value in inner.output)
            names.update((value, None) for inner in graph.node for value in _sources_of(inner) if value not in local)
    return names


def _check_expansion(proto: onnx.ModelProto, functions: dict[_Key, onnx.FunctionProto], name: str) -> None:
    """Reject recursive functions, and functions that expand to too many nodes, without expanding them."""
    calls = {key: list(_calls(function)) for key, function in functions.items()}
    try:
        order = TopologicalSorter(
            {key: [callee for callee in called if callee in functions] for key, called in calls.items()}
        )
        sizes: dict[_Key, int] = {}
        for key in order.static_order():
            sizes[key] = sum(sizes.get(callee, 1) for callee in calls[key])
    except CycleError as error:
        path = " -> ".join(map(_qualified, reversed(error.args[1])))  # graphlib lists callees first
        raise InvalidModel(f"{name} is not a valid graph: a function calls itself ({path})") from None
    called = [key for key in _calls(proto.graph) if key in functions]
    if (count := sum(sizes[key] for key in called)) > MAX_NODES:
        largest = max(called, key=lambda key: sizes[key])
        raise InvalidModel(
            f"{name} expands to {count:,} nodes (the function {_qualified(largest)} alone to {sizes[largest]:,}); "
            f"isorun accepts at most {MAX_NODES:,}"
        )


def _calls(graph: GraphLike) -> Iterator[_Key]:
    """The operator of each node, including nodes in subgraphs."""
    for part in with_subgraphs(graph):
        yield from (_key(node.domain, node.op_type, node.overload) for node in part.node)


def _graphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [attribute.g, *attribute.graphs] if attribute.HasField("g") else list(attribute.graphs)


def _tensors_of(sparse: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for tensor in sparse:
        yield tensor.values
        yield tensor.indices


def _key(domain: str, name: str, overload: str) -> _Key:
    return (nodes.domain(domain), name, overload)


def _qualified(key: _Key) -> str:
    domain, name, overload = key
    return f"{domain}.{name}{f':{overload}' if overload else ''}"
