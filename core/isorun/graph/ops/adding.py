"""Adding nodes to a graph: one way for builders, fusions and transforms, wherever the nodes go.

Calls nest, and integers among their inputs are constants, as in the texts of dialects::

    total = op("ReduceSum", op("Mul", value, op("Unsqueeze", real, [2])), [1], keepdims=0)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

Operand = ir.Value | int | Sequence[int] | None
"""An input of a node: a value, an int64 constant (a scalar or a vector), or ``None`` for one that is absent."""


class Nodes(ABC):
    """A place in a graph where nodes are added."""

    def __call__(self, kind: str, *inputs: Operand, domain: str = "", **attributes: Any) -> ir.Value:
        """Add a node, and return its output."""
        return self.several(1, kind, *inputs, domain=domain, **attributes)[0]

    def several(
        self, outputs: int, kind: str, *inputs: Operand, domain: str = "", **attributes: Any
    ) -> Sequence[ir.Value]:
        """Add a node with several outputs, and return them."""
        values = [value if value is None or isinstance(value, ir.Value) else self.integers(value) for value in inputs]
        node = ir.node(kind, values, attributes, domain=domain, num_outputs=outputs)
        self.place(node)
        return node.outputs

    def integers(self, numbers: int | Sequence[int]) -> ir.Value:
        """A constant of one integer or of several, once for all that read it."""
        return self.constant(*_integers(numbers))

    @abstractmethod
    def constant(self, label: str, content: np.ndarray) -> ir.Value:
        """A constant. Constants of one label that are equal may be one."""

    @abstractmethod
    def place(self, node: ir.Node) -> None:
        """Put a node into the graph."""


class Owner(Protocol):
    """What has the nodes of a graph that is built."""

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """A constant of the graph, the one of that name if there is one."""

    def add(self, node: ir.Node, name: str) -> None:
        """Add a node; a number is appended to the name if it is taken."""


class Named(Nodes):
    """Adds nodes whose names are their operators, after a prefix."""

    def __init__(self, owner: Owner, prefix: str) -> None:
        self._owner, self._prefix = owner, prefix

    def constant(self, label: str, content: np.ndarray) -> ir.Value:
        return self._owner.constant(f"{self._prefix}.{label}", content)

    def integers(self, numbers: int | Sequence[int]) -> ir.Value:
        return self._owner.constant(*_integers(numbers))

    def place(self, node: ir.Node) -> None:
        self._owner.add(node, f"{self._prefix}.{node.op_type}")


class Beside(Nodes):
    """Adds nodes before another one of any graph or function: constants are nodes, too.

    Args:
        node: the other one.
        prefix: of the names of nodes and values. A graph within another must not have the other's names again.
    """

    def __init__(self, node: ir.Node, prefix: str) -> None:
        self._node, self._prefix, self._count = node, prefix, 0

    def constant(self, label: str, content: np.ndarray) -> ir.Value:
        del label
        return self("Constant", value=ir.tensor(content))

    def place(self, node: ir.Node) -> None:
        node.name = node.outputs[0].name = f"{self._prefix}.{self._count}"
        self._count += 1
        self._node.prepend(node)


def _integers(numbers: int | Sequence[int]) -> tuple[str, np.ndarray]:
    """A label that only constants of these integers have, and the constant."""
    content = np.array(numbers, np.int64)
    shape, elements = ("_".join(map(str, part)) for part in (content.shape, content.reshape(-1).tolist()))
    return f"integers.{shape or 'scalar'}.{elements}", content
