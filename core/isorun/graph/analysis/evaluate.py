"""A part of a graph, computed on small inputs: to see what it computes rather than how it is spelt.

ONNX's reference implementations compute it, node by node and on demand: what a value does not depend on is never
touched. Where a ``Shape`` node follows the usual operators, shapes are worked out and their data is not computed.
What a graph computes in 16 bits is computed in float32 here: what it means shows, and not how it rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference.ops import load_op

Samples = dict[ir.Value, np.ndarray]
"""Arrays for some values of a graph."""

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""The types of 16 bits."""
_HALF_TYPES = tuple(each.numpy() for each in HALVES)
_SHAPE_ALONE = ("Shape", "Size")
_SAME_SHAPE = frozenset(("Cast", "LayerNormalization", "Softmax", "Not", "Identity"))
_BROADCAST = frozenset(("Add", "Sub", "Mul", "Div", "Where", "And", "Or"))
_MOST_ELEMENTS = 2.0**28  # that an operator may make of small inputs: samples have a few thousand
_SHAPE_STEPS = 8  # how far back a shape is looked for: enough for the embeddings before a mask


class CannotEvaluate(Exception):
    """A value depends on something that is not given, or on an operator that has no implementation."""


class Evaluator:
    """Values of a graph, given those of some of them.

    Args:
        opset: the version of ONNX's operators that the graph is written in.
        given: what to take for some values, whatever the graph computes for them.
    """

    def __init__(self, opset: int, given: Mapping[ir.Value, np.ndarray]) -> None:
        self._opset = opset
        self._known = {value: _wide(array) for value, array in given.items()}

    def __call__(self, value: ir.Value) -> np.ndarray:
        """The value's array.

        Raises:
            CannotEvaluate: it depends on an input that is not given, or cannot be computed here.
        """
        for node in self._needed(value):
            with np.errstate(all="ignore"):
                self._run(node)
        return self._known[value] if value in self._known else _constant(value)

    def _needed(self, value: ir.Value) -> Iterator[ir.Node]:
        """The nodes to run for a value, each after those that it needs."""
        seen: set[ir.Node] = set()
        begun: set[ir.Node] = set()
        stack: list[tuple[ir.Value, bool]] = [(value, False)]
        while stack:
            each, ready = stack.pop()
            node = each.producer()
            if ready and node is not None:
                seen.add(node)
                if each not in self._known:
                    yield node
            elif node is None or node in seen or each in self._known:
                continue
            elif node.op_type == "Shape" and node.inputs[0] is not None:
                self._known[each] = self._shape_of(node, node.inputs[0])
            elif node in begun:  # no file has a cycle, but a graph made in memory may
                raise CannotEvaluate(f"{node.op_type} ({node.name}) depends on its own result")
            else:
                begun.add(node)
                stack.append((each, True))
                stack.extend((before, False) for before in node.inputs if before is not None)

    def _shape_of(self, node: ir.Node, value: ir.Value) -> np.ndarray:
        """What a ``Shape`` node gives."""
        start, end = (node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end"))
        return np.array(self._shape(value, _SHAPE_STEPS)[start:end], np.int64)

    def _shape(self, value: ir.Value, steps: int) -> tuple[int, ...]:
        if is_constant(value):
            return sizes(value)
        node = value.producer()
        if value in self._known or node is None or node.domain != "" or steps == 0:
            return self(value).shape
        if node.op_type in _SAME_SHAPE and node.inputs[0] is not None:
            return self._shape(node.inputs[0], steps - 1)
        if node.op_type in _BROADCAST:
            shapes = [self._shape(each, steps - 1) for each in node.inputs if each is not None]
            try:
                return np.broadcast_shapes(*shapes)
            except ValueError as error:
                raise CannotEvaluate(f"{node.op_type} ({node.name}) cannot be evaluated: {error}") from error
        if node.op_type == "Gather" and ("axis" not in node.attributes or node.attributes["axis"].as_int() == 0):
            rows, index = (self._shape(each, steps - 1) for each in node.inputs if each is not None)
            return index + rows[1:]
        return self(value).shape

    def _run(self, node: ir.Node) -> None:
        inputs = [None if each is None else self._known.get(each) for each in node.inputs]
        inputs = [
            _constant(value) if array is None and value is not None else array
            for value, array in zip(node.inputs, inputs, strict=True)
        ]
        if _rounds(node) and inputs[0] is not None:
            self._known[node.outputs[0]] = inputs[0].astype(np.float32)
            return
        for value, result in zip(node.outputs, run_node(node, inputs, self._opset), strict=False):
            self._known[value] = _wide(result)


def _rounds(node: ir.Node) -> bool:
    """Whether a node makes 16 bits of more."""
    return node.op_type == "Cast" and node.domain == "" and node.attributes["to"].as_int() in HALVES


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype in _HALF_TYPES else array


def run_node(node: ir.Node, inputs: list[np.ndarray | None], opset: int) -> tuple[np.ndarray, ...]:
    """What a node gives for these inputs, in the types that it gives.

    Raises:
        CannotEvaluate: there is no implementation of it, or it failed on these inputs.
    """
    try:
        if node.op_type == "GatherElements" and node.domain == "":  # ONNX's own is wrong where rows differ
            return (_gather_elements(node, *inputs),)
        _check_growth(node, inputs)
        implementation = load_op(node.domain, node.op_type, opset if node.domain == "" else None)
        results = implementation.eval(*inputs, n_outputs=len(node.outputs), **_attributes(node))
    except Exception as error:  # whatever it is, it says that this node cannot be seen through
        raise CannotEvaluate(f"{node.op_type} ({node.name}) cannot be evaluated: {error}") from error
    return results if isinstance(results, tuple) else (results,)


def _check_growth(node: ir.Node, inputs: list[np.ndarray | None]) -> None:
    """Refuse what would fill the memory: operators whose inputs say how large their results are."""
    sizes = _GROWTH.get(node.op_type) if node.domain == "" else None
    if sizes is not None and (size := float(sizes(*inputs))) > _MOST_ELEMENTS:
        raise CannotEvaluate(f"{node.op_type} ({node.name}) cannot be evaluated: it makes {size:g} elements")


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


def _gather_elements(node: ir.Node, data: np.ndarray | None, indices: np.ndarray | None) -> np.ndarray:
    assert data is not None
    assert indices is not None
    axis = node.attributes["axis"].as_int() % data.ndim if "axis" in node.attributes else 0
    rows = data[tuple(slice(None) if at == axis else slice(size) for at, size in enumerate(indices.shape))]
    return np.take_along_axis(rows, indices, axis)


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is part of the model, and no input that a caller may override."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def array(value: ir.Value) -> np.ndarray:
    """A constant's array."""
    assert value.const_value is not None
    return value.const_value.numpy()


def sizes(value: ir.Value) -> tuple[int, ...]:
    """A constant's shape."""
    assert value.const_value is not None
    return tuple(int(size) for size in value.const_value.shape)  # type: ignore[arg-type]


def data_inputs(value: ir.Value) -> set[ir.Value]:
    """The graph inputs whose data, and not only whose shape, a value depends on."""
    return {each for each in ancestors(value) if each.producer() is None and not is_constant(each)}


def ancestors(value: ir.Value, stop: frozenset[ir.Value] = frozenset()) -> dict[ir.Value, None]:
    """What a value's data depends on, itself first; what stands before a value in ``stop`` is left out."""
    found: dict[ir.Value, None] = {}
    stack = [value]
    while stack:
        each = stack.pop()
        if each in found:
            continue
        found[each] = None
        node = each.producer()
        if node is not None and node.op_type not in _SHAPE_ALONE and each not in stop:
            stack.extend(before for before in node.inputs if before is not None)
    return found


def _constant(value: ir.Value) -> np.ndarray:
    if not is_constant(value):
        raise CannotEvaluate(f"it depends on {value.name!r}, which is not given")
    return _wide(array(value))


def _attributes(node: ir.Node) -> dict[str, Any]:
    found = {}
    for name, attribute in node.attributes.items():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            raise CannotEvaluate(f"{node.op_type} ({node.name}) has a graph of its own")
        found[name] = (
            ir.serde.serialize_tensor(attribute.value)
            if attribute.type == ir.AttributeType.TENSOR
            else (attribute.value)
        )
    return found
