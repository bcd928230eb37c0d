"""The structure of a model, checked once when it is read: every pass after it relies on what is checked here.

Each value has one definition, no node needs its own result, functions do not call themselves, and what they expand
to is bounded. Nodes that are out of order, which ONNX forbids and every runtime accepts, are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx

from isorun.errors import InvalidModel

MOST_NODES = 100_000
"""The maximum number of nodes that a model's functions may expand to: a few nested ones can stand for 2^40."""

_Key = tuple[str, str, str]  # domain, name, overload
_OwnGraph = onnx.GraphProto | onnx.FunctionProto


def tensors(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Every tensor of a model: in graphs, functions, default attributes and training information, at any depth."""
    found: list[onnx.TensorProto] = []
    graphs: list[_OwnGraph] = [proto.graph, *proto.functions]
    for info in proto.training_info:
        graphs += [info.initialization, info.algorithm]
    while graphs:
        graphs += _look_into(graphs.pop(), found)
    return found


def check(proto: onnx.ModelProto, name: str) -> list[onnx.TensorProto]:
    """Check a model's structure, and sort nodes that are out of order, in place.

    Args:
        proto: the model.
        name: what to call it in an error.

    Returns:
        Its tensors, as :func:`tensors` lists them: one walk serves both.

    Raises:
        InvalidModel: two values have one name, a node reads a value that nothing computes or that depends on the
            node itself, a function calls itself, or functions expand to more than :data:`MOST_NODES` nodes.
    """
    found: list[onnx.TensorProto] = []
    functions: dict[_Key, onnx.FunctionProto] = {}
    for function in proto.functions:
        key = _key(function.domain, function.name, function.overload)
        if key in functions:
            raise InvalidModel(f"{name} defines the function {_spell(key)} twice")
        functions[key] = function
        where = f"{name}, function {_spell(key)},"
        _check_graph(where, function, list(function.input), list(function.output), frozenset(), found)
    _check_main(name, proto.graph, frozenset(), found)
    for info in proto.training_info:  # neither isorun nor an inference runtime executes it
        outside = [info.initialization, info.algorithm]
        while outside:
            outside += _look_into(outside.pop(), found)
    if functions:
        _check_expansion(proto, functions, name)
    return found


def _look_into(graph: _OwnGraph, found: list[onnx.TensorProto]) -> list[onnx.GraphProto]:
    """Add one graph's own tensors to ``found``; the graphs inside its nodes are returned."""
    attributes: list[onnx.AttributeProto] = []
    if isinstance(graph, onnx.GraphProto):
        found.extend(graph.initializer)
        found.extend(_dense(graph.sparse_initializer))
    else:
        attributes.extend(graph.attribute_proto)
    for node in graph.node:
        attributes += node.attribute
    inside: list[onnx.GraphProto] = []
    for attribute in attributes:  # whatever their `type` says: not every reader goes by it
        if attribute.HasField("t"):
            found.append(attribute.t)
        if attribute.HasField("sparse_tensor"):
            found.extend(_dense([attribute.sparse_tensor]))
        if attribute.tensors or attribute.sparse_tensors:
            found.extend((*attribute.tensors, *_dense(attribute.sparse_tensors)))
        inside += _graphs(attribute)
    return inside


def _check_main(name: str, graph: onnx.GraphProto, outer: frozenset[str], found: list[onnx.TensorProto]) -> None:
    """Check a graph that is no function's."""
    inputs = [each.name for each in graph.input]
    weights = [each.name for each in graph.initializer] + [each.values.name for each in graph.sparse_initializer]
    for names in (inputs, weights):
        if repeated := _repeated(names):
            raise InvalidModel(f"{name} holds no valid graph: {repeated!r} is the name of two values")
    outputs = [each.name for each in graph.output]
    _check_graph(name, graph, [*inputs, *weights], outputs, outer, found)


def _check_graph(
    name: str,
    graph: _OwnGraph,
    given: list[str],
    outputs: list[str],
    outer: frozenset[str],
    found: list[onnx.TensorProto],
) -> None:
    """Check what the nodes of a graph read and compute.

    Args:
        given: the values that the graph begins with.
        outputs: its results.
        outer: the values of the graphs around it.
        found: is given its tensors.
    """
    known = {"", *outer, *given}
    computed: list[str] = []
    in_order = True
    for node in graph.node:
        if in_order and not known.issuperset(node.input):
            in_order = False
        results = list(node.output)
        computed += results
        known.update(results)
    named = [value for value in computed if value]
    own = {*given, *named}
    if len(own) != len(named) + len(set(given)):
        repeated = _repeated([*dict.fromkeys(given), *named])
        raise InvalidModel(f"{name} holds no valid graph: {repeated!r} is the name of two values")
    for value in outputs:
        if value not in known:
            raise InvalidModel(f"{name} holds no valid graph: nothing computes its output {value!r}")
    inside = _look_into(graph, found)
    if inside or not in_order:
        _sort(name, graph, known)
    for each in inside:
        _check_main(name, each, frozenset(known), found)


def _repeated(names: Iterable[str]) -> str:
    """The first name that appears twice; empty where none does."""
    seen: set[str] = set()
    for each in names:
        if each in seen:
            return each
        seen.add(each)
    return ""


def _sort(name: str, graph: _OwnGraph, known: set[str]) -> None:
    """Sort the nodes of a graph that are out of order, each after those that it and its sub-graphs read from."""
    makers = {value: index for index, node in enumerate(graph.node) for value in node.output if value}
    needed: dict[int, dict[int, None]] = {}
    for index, node in enumerate(graph.node):
        reads = _reads(node)
        for value in reads:
            if value not in known:
                raise InvalidModel(
                    f"{name} holds no valid graph: nothing computes {value!r}, which {_label(node)} reads"
                )
        needed[index] = {makers[value]: None for value in reads if value in makers}
    if all(before < index for index, others in needed.items() for before in others):
        return
    try:
        order = list(TopologicalSorter(needed).static_order())
    except CycleError as error:
        node = graph.node[error.args[1][0]]
        raise InvalidModel(f"{name} holds no valid graph: {_label(node)} depends on its own result (a cycle)") from None
    rank = {index: place for place, index in enumerate(order)}
    places = {value: rank[index] for value, index in makers.items()}

    def place(node: Any) -> int:
        return next((places[value] for value in node.output if value), len(rank))

    graph.node.sort(key=place)


def _reads(node: onnx.NodeProto) -> dict[str, None]:
    """The names that a node reads from its graph or those around it, itself or in its sub-graphs."""
    found = dict.fromkeys(value for value in node.input if value)
    for attribute in node.attribute:
        for graph in _graphs(attribute):
            own = {each.name for each in graph.input} | {each.name for each in graph.initializer}
            own.update(each.values.name for each in graph.sparse_initializer)
            own.update(value for inner in graph.node for value in inner.output)
            found.update((value, None) for inner in graph.node for value in _reads(inner) if value not in own)
    return found


def _check_expansion(proto: onnx.ModelProto, functions: dict[_Key, onnx.FunctionProto], name: str) -> None:
    """Refuse functions that call themselves, or that expand to too many nodes. Nothing is expanded."""
    calls = {key: list(_calls(function)) for key, function in functions.items()}
    try:
        order = TopologicalSorter(
            {key: [each for each in called if each in functions] for key, called in calls.items()}
        )
        sizes: dict[_Key, int] = {}
        for key in order.static_order():
            sizes[key] = sum(sizes.get(each, 1) for each in calls[key])
    except CycleError as error:
        path = " -> ".join(map(_spell, reversed(error.args[1])))  # graphlib lists callees first
        raise InvalidModel(f"{name} holds no valid graph: a function calls itself ({path})") from None
    called = [key for key in _calls(proto.graph) if key in functions]
    if (count := sum(sizes[key] for key in called)) > MOST_NODES:
        largest = max(called, key=lambda key: sizes[key])
        raise InvalidModel(
            f"{name} expands to {count:,} nodes, the function {_spell(largest)} alone to {sizes[largest]:,}; "
            f"isorun accepts at most {MOST_NODES:,}"
        )


def _calls(graph: _OwnGraph) -> Iterator[_Key]:
    """The operator of each node, those in sub-graphs included."""
    for node in graph.node:
        yield _key(node.domain, node.op_type, node.overload)
        for attribute in node.attribute:
            for inner in _graphs(attribute):
                yield from _calls(inner)


def _graphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [attribute.g, *attribute.graphs] if attribute.HasField("g") else list(attribute.graphs)


def _dense(sparse: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for each in sparse:
        yield each.values
        yield each.indices


def _key(domain: str, name: str, overload: str) -> _Key:
    return ("" if domain == "ai.onnx" else domain, name, overload)


def _spell(key: _Key) -> str:
    domain, name, overload = key
    return f"{domain}.{name}{f':{overload}' if overload else ''}"


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name!r}" if node.name else node.op_type
