"""Evaluation of subgraphs on small inputs, to recognize them by their results rather than their structure.

ONNX's reference implementations evaluate node by node, on demand: nodes that a value does not depend on are not run.
16-bit computations run in float32, so that results are independent of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
import onnx_ir as ir
from onnx.reference.ops import load_op

from isorun.graph.io.nodes import needed
from isorun.graph.ops import functions
from isorun.system.interruption import interrupts

Samples = dict[ir.Value, np.ndarray]
"""Arrays for some values of a graph."""

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""The 16-bit floating-point types."""
_Operator = Callable[..., tuple[np.ndarray, ...]]
_HALF_DTYPES = tuple(dtype.numpy() for dtype in HALVES)
_SHAPE_OPERATORS = ("Shape", "Size")
_MAX_ELEMENTS = 2.0**28  # the maximum size of an operator's output; samples have a few thousand


class CannotEvaluate(Exception):
    """A value depends on an input without a sample, or on an operator without an implementation."""


class Evaluator:
    """Computes values of a graph from samples.

    Args:
        opset: the graph's version of the standard operators.
        samples: arrays for some values, which replace what the graph computes for them.
    """

    def __init__(self, opset: int, samples: Mapping[ir.Value, np.ndarray]) -> None:
        self._opset = opset
        self._known = {value: _widened(array) for value, array in samples.items()}

    def __call__(self, value: ir.Value) -> np.ndarray:
        """Compute a value.

        Raises:
            CannotEvaluate: it depends on an input without a sample, or on an operator that cannot be run.
        """
        with np.errstate(all="ignore"):
            for node in self._needed(value):
                self._run(node)
        return self._known[value] if value in self._known else _constant(value)

    def _needed(self, value: ir.Value) -> Iterator[ir.Node]:
        """The nodes to run for a value, in topological order."""
        seen: set[ir.Node] = set()
        started: set[ir.Node] = set()
        stack: list[tuple[ir.Value, bool]] = [(value, False)]
        while stack:
            current, ready = stack.pop()
            node = current.producer()
            if ready and node is not None:
                seen.add(node)
                if current in self._known:
                    continue
                yield node
            elif node is None or node in seen or current in self._known:
                continue
            elif node in started:  # files have no cycles, but graphs built in memory may
                raise CannotEvaluate(f"{node.op_type} ({node.name}) depends on its own result")
            else:
                started.add(node)
                stack.append((current, True))
                stack.extend((source, False) for source in node.inputs if source is not None)

    def _run(self, node: ir.Node) -> None:
        widen = node.op_type != "Gather"  # of a large table, a few rows are read
        inputs = [
            None if value is None else self._known[value] if value in self._known else _constant(value, widen=widen)
            for value in node.inputs
        ]
        narrows = node.op_type == "Cast" and node.domain == "" and node.attributes["to"].as_int() in HALVES
        if narrows and inputs[0] is not None:
            self._known[node.outputs[0]] = inputs[0].astype(np.float32)
            return
        for value, result in zip(node.outputs, run_node(node, inputs, self._opset), strict=False):
            if not isinstance(result, np.ndarray):
                raise CannotEvaluate(f"{node.op_type} ({node.name}) has a result that is no tensor")
            self._known[value] = _widened(result)


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype in _HALF_DTYPES else array


def run_node(node: ir.Node, inputs: list[np.ndarray | None], opset: int) -> tuple[np.ndarray, ...]:
    """Run one node.

    Raises:
        CannotEvaluate: it has no implementation, or failed on these inputs.
    """
    try:
        if node.op_type == "GatherElements" and node.domain == "":  # ONNX's implementation is wrong if rows differ
            return (_gather_elements(node, *inputs),)
        if (node.domain, node.op_type) == (functions.DOMAIN, functions.RMS_NORM):
            return (_rms_normalize(node, *inputs),)
        _check_growth(node, inputs)
        return _operator(node, len(inputs), opset)(*inputs)
    except Exception as error:  # reference implementations raise many types, some around the one that says why
        if interrupts(error):
            raise
        cause = error.__cause__ or error
        raise CannotEvaluate(f"{node.op_type} ({node.name}) cannot be evaluated: {cause}") from error


def _operator(node: ir.Node, inputs: int, opset: int) -> _Operator:
    """The reference implementation of a node. Making one costs as much as running it on samples."""
    attributes = _attributes(node)
    make = _cached_operator if _HASHED.issuperset(map(type, attributes.values())) else _new_operator
    settings = tuple((name, str(value), value) for name, value in attributes.items())  # -0.0 equals 0.0
    return make(node.domain, node.op_type, opset, inputs, len(node.outputs), settings)


def _new_operator(
    domain: str, op_type: str, opset: int, inputs: int, outputs: int, settings: tuple[tuple[str, str, Any], ...]
) -> _Operator:
    version = None if domain else max(opset, _FIRST_IMPLEMENTED.get(op_type, opset))
    implementation = load_op(domain, op_type, version)
    run: _Operator = implementation.create(inputs, outputs, **{name: value for name, _, value in settings}).run
    return run


_cached_operator = lru_cache(1024)(_new_operator)
_HASHED = frozenset((int, float, str, tuple))
# ONNX implements it from this version on, which computes what earlier ones do. Quantizers write older opsets.
_FIRST_IMPLEMENTED = {"DequantizeLinear": 19}


def _check_growth(node: ir.Node, inputs: list[np.ndarray | None]) -> None:
    """Reject operators whose input values request a result that would exhaust memory."""
    sizes = _GROWTH.get(node.op_type) if node.domain == "" else None
    if sizes is not None and (size := float(sizes(*inputs))) > _MAX_ELEMENTS:
        raise CannotEvaluate(f"{node.op_type} ({node.name}) cannot be evaluated: its result has {size:g} elements")


def _product(numbers: Any) -> float:
    return float(np.prod(np.asarray(numbers, np.float64)))


_GROWTH: Mapping[str, Callable[..., float]] = {
    "ConstantOfShape": lambda shape, *_: _product(shape),
    "Expand": lambda data, shape: _product(np.broadcast_shapes(data.shape, tuple(shape))),
    "OneHot": lambda indices, depth, *_: indices.size * float(np.max(depth)),
    "Pad": lambda data, pads, *_: _product(np.add(data.shape, np.abs(pads).sum())),
    "Range": lambda start, limit, delta: abs(float(limit) - float(start)) / (abs(float(delta)) or 1.0),
    "Tile": lambda data, repeats, *_: data.size * _product(repeats),
}


def _rms_normalize(node: ir.Node, data: Any, gamma: Any) -> np.ndarray:
    mean = np.square(data).mean(-1, keepdims=True)
    return np.asarray(data / np.sqrt(mean + node.attributes["epsilon"].as_float()) * gamma, data.dtype)


def _gather_elements(node: ir.Node, data: Any, indices: Any) -> np.ndarray:
    axis = node.attributes.get_int("axis", 0) % data.ndim
    rows = data[tuple(slice(None) if at == axis else slice(size) for at, size in enumerate(indices.shape))]
    return np.take_along_axis(rows, indices, axis)


def is_constant(value: ir.Value | None) -> TypeGuard[ir.Value]:
    """Whether a value is a constant of the model that no caller can override."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def array(value: ir.Value) -> np.ndarray:
    """A constant's array."""
    return needed(value.const_value).numpy()


def sizes(value: ir.Value) -> tuple[int, ...]:
    """A constant's shape."""
    return tuple(int(size) for size in needed(value.const_value).shape)  # type: ignore[arg-type]


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """The graphs of a node's attributes, such as the branches of an ``If``."""
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs.extend(attribute.as_graphs())
    return graphs


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, and what the graphs of its attributes read and return, at any depth."""
    yield from (value for value in node.inputs if value is not None)
    for graph in subgraphs(node):
        yield from graph.outputs
        for inner in graph:
            yield from reads(inner)


def data_inputs(value: ir.Value, stop: frozenset[ir.Value] = frozenset()) -> Set[ir.Value]:
    """The graph inputs whose data, not only shape, a value depends on, other than through the values to stop at.

    They have an order, that of the search.
    """
    sources = (source for source in ancestors(value, stop) if source not in stop)
    return {source: None for source in sources if source.producer() is None and not is_constant(source)}.keys()


def ancestors(
    value: ir.Value, stop: frozenset[ir.Value] = frozenset(), through: Set[str] | None = None
) -> dict[ir.Value, None]:
    """The values that a value's data depends on, itself first; values in ``stop`` are not expanded, nor is what other
    operators compute than those of ONNX's in ``through``, if there are any."""
    values: dict[ir.Value, None] = {}
    stack = [value]
    while stack:
        current = stack.pop()
        if current in values:
            continue
        values[current] = None
        node = current.producer()
        if node is None or node.op_type in _SHAPE_OPERATORS or current in stop:
            continue
        if through is None or (node.domain == "" and node.op_type in through):
            stack.extend(source for source in node.inputs if source is not None)
    return values


def behind(value: ir.Value, operators: Set[str]) -> ir.Value:
    """What a value is computed from by ONNX's operators among these alone, along their first inputs."""
    while (node := value.producer()) is not None and node.domain == "" and node.op_type in operators:
        if node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


def _constant(value: ir.Value, *, widen: bool = True) -> np.ndarray:
    if not is_constant(value):
        raise CannotEvaluate(f"it depends on {value.name!r}, which has no sample")
    return _widened(array(value)) if widen else array(value)


def _attributes(node: ir.Node) -> dict[str, Any]:
    attributes = {}
    for name, attribute in node.attributes.items():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            raise CannotEvaluate(f"{node.op_type} ({node.name}) has a subgraph")
        is_tensor = attribute.type == ir.AttributeType.TENSOR
        attributes[name] = ir.serde.serialize_tensor(attribute.value) if is_tensor else attribute.value
    return attributes
