"""What the tables of known faults ask of nodes, and make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import Fault

if TYPE_CHECKING:
    import onnx_ir as ir

Condition = Callable[["ir.Node", int], bool]
Rewrite = Callable[["Nodes", "ir.Node"], object]  # adds the nodes of an equivalent, those of its outputs last

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""The gates of the operators of recurrent layers."""

_DECLARATIONS = re.compile(r"g \((.*?)\) => \((.*?)\)", re.DOTALL)  # of inputs and outputs
_DECLARATION = re.compile(r"(\w+)(?:\[[^]]*\])? (\w+)")


def attribute_of(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of an attribute; the default if it has none, or refers to another one."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else attribute.value


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """An input; ``None`` if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def producer(value: ir.Value | None, *kinds: str) -> ir.Node | None:
    """The node that computes a value, if it is of one of some kinds; by default, of any."""
    node = None if value is None else value.producer()
    return node if node is not None and (not kinds or node.op_type in kinds) else None


def shape_of(value: ir.Value | None) -> list[Any] | None:
    """The sizes of a value, integers or symbols; ``None`` if their number is not known."""
    return None if value is None or value.shape is None else list(value.shape)


def array_of(value: ir.Value | None) -> np.ndarray | None:
    """The array of a constant; ``None`` if it is not one."""
    import onnx_ir as ir

    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def settled(value: ir.Value | None) -> np.ndarray | None:
    """The array of a constant that no feed replaces, where a runtime lets feeds replace the default of an input."""
    return None if value is None or value.is_graph_input() else array_of(value)


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is a constant, of whatever size."""
    import onnx_ir as ir

    return value is not None and ir.convenience.get_const_tensor(value) is not None


def static(value: ir.Value | None) -> list[Any] | None:
    """The elements of a constant that may not be a table of weights; ``None`` if it is not one."""
    array = array_of(value)
    return None if array is None else array.reshape(-1).tolist()


def number(value: ir.Value | None) -> float | None:
    """The one element of a constant; ``None`` if it is not one, or has others."""
    array = array_of(value)
    return None if array is None or array.size != 1 else float(array.reshape(-1)[0])


def has(name: str, *values: Any) -> Condition:
    """Whether an attribute has one of some values."""
    return lambda node, _: attribute_of(node, name) in values


def differs(name: str, default: Any) -> Condition:
    """Whether an attribute has another value than its default."""
    return lambda node, _: bool(attribute_of(node, name, default) != default)


def every(*conditions: Condition) -> Condition:
    """Whether all of some conditions hold."""
    return lambda node, opset: all(condition(node, opset) for condition in conditions)


def dtype_of(value: ir.Value | None, unknown: Any = np.int64) -> Any:
    """The type of a value's elements, for NumPy; another one if it is not known."""
    return unknown if value is None or value.dtype is None else value.dtype.numpy()


def kind_of(value: ir.Value | None) -> str:
    """ONNX's name of the type of a value's elements; empty if it is not known."""
    return "" if value is None or value.dtype is None else value.dtype.name


def is_small(value: ir.Value | None, limit: int) -> bool:
    """Whether a value is a constant below a limit, or is computed from such constants and sizes alone."""
    leaves = None if value is None else [settled(leaf) for leaf in _leaves(value)]
    return leaves is not None and all(
        numbers is not None and all(abs(number) < limit for number in numbers.flat) for numbers in leaves
    )


def is_fixed(value: ir.Value) -> bool:
    """Whether a value is a constant, or is computed from constants and sizes alone."""
    return all(is_constant(leaf) and not leaf.is_graph_input() for leaf in _leaves(value))


def _leaves(value: ir.Value) -> Iterator[ir.Value]:
    """What a value is computed from: constants, and values that are not computed from others. Sizes are left out."""
    known: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current in known:
            continue
        known.add(current)
        node = current.producer()
        if node is None or is_constant(current) or any(part.type.name == "GRAPH" for part in node.attributes.values()):
            yield current
        elif node.op_type not in ("Shape", "Size"):
            waiting += [read for read in node.inputs if read is not None]


class Nodes(list["ir.Node"]):
    """The nodes of an equivalent, in the order in which they are added."""

    def __call__(self, op: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node of one output of ONNX's own operators, and return the output."""
        import onnx_ir as ir

        self.append(ir.node(op, inputs, attributes))
        return self[-1].outputs[0]

    def constant(self, value: Any, dtype: Any = None) -> ir.Value:
        """Add a constant of an array, or of a number, which is in int64 without a dtype."""
        import onnx_ir as ir

        return self("Constant", value=ir.tensor(np.asarray(value, dtype)))

    def cast(self, value: ir.Value | None, dtype: Any) -> ir.Value:
        """Add a conversion to one of NumPy's types."""
        import onnx_ir as ir

        return self("Cast", value, to=ir.DataType.from_numpy(np.dtype(dtype)))

    def like(self, node: ir.Node, *inputs: ir.Value | None, outputs: int | None = None) -> Sequence[ir.Value]:
        """Add the operator of a node with other inputs, and return its outputs: as many, by default."""
        import onnx_ir as ir

        count = len(node.outputs) if outputs is None else outputs
        self.append(ir.node(node.op_type, inputs, node.attributes, domain=node.domain, num_outputs=count))
        return self[-1].outputs


def _nodes_of(add: Rewrite) -> Callable[[ir.Node], list[ir.Node]]:
    @wraps(add)  # the module of a table's functions is part of cache keys
    def nodes_of(node: ir.Node) -> list[ir.Node]:
        nodes = Nodes()
        add(nodes, node)
        return nodes

    return nodes_of


def where_below(op: Nodes, value: ir.Value | None, limit: int, substitute: int) -> ir.Value:
    """Integers, or another number where they are below a limit."""
    minimum = op.constant(limit, dtype_of(value))
    replacement = minimum if substitute == limit else op.constant(substitute, dtype_of(value))
    return op("Where", op("Less", value, minimum), replacement, value)


class Rows:
    """Makes the rows of a table, of the versions of a runtime in which the faults were seen."""

    def __init__(self, versions: str) -> None:
        self._versions = versions

    def __call__(
        self,
        row: str,
        model: str,
        *,
        feeds: Mapping[str, Any],
        expected: Sequence[Any] | None = None,
        rewrite: Rewrite | None = None,
        **fields: Any,
    ) -> Fault:
        """A row.

        Args:
            row: ``operator | condition | result``, as in the table of docs/runtime-faults.md.
            model: the graph in text form, whose declarations are also those of feeds and expected outputs.
            feeds, expected: anything that NumPy converts.
            rewrite: adds the nodes of an equivalent to the first argument, those of its outputs last.
            fields: the other fields of :class:`isorun.plugin.Fault`.
        """
        operator, condition, result = row.split(" | ")
        declared = _DECLARATIONS.match(model)
        assert declared is not None
        inputs, outputs = (_DECLARATION.findall(part) for part in declared.groups())
        if expected is not None:
            expected = [_typed(value, kind) for value, (kind, _) in zip(expected, outputs, strict=True)]
        return Fault(
            operator=operator,
            condition=condition,
            result=result,
            versions=self._versions,
            model=model,
            feeds={name: _typed(feeds[name], kind) for kind, name in inputs},
            expected=expected,
            rewrite=None if rewrite is None else _nodes_of(rewrite),
            **fields,
        )


def _typed(value: Any, kind: str) -> np.ndarray:
    """A value in a type by ONNX's name."""
    return np.asarray(value, {"float": "float32", "double": "float64", "string": "object"}.get(kind, kind))
