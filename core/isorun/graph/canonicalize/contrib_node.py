"""One of ONNX Runtime's fused operators, and what is inserted in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import ancestors, is_constant
from isorun.graph.matching import subgraph
from isorun.graph.matching.report import CannotFuse

FORMULAS = "isorun.contrib"
"""The domain of the formulas in ``contrib.onnxtxt``."""
Values = Sequence[ir.Value]
"""What replaces an operator's outputs."""
_AXES_ARE_AN_INPUT = 18
_KEEP_TOKENS = frozenset(
    (
        *("Add", "Cast", "CastLike", "Div", "Erf", "Gather", "LayerNormalization", "MatMul", "Mul", "Pow"),
        *("ReduceMean", "Sigmoid", "Split", "Sqrt", "Sub", "Tanh"),
    )
)


class Node(subgraph.Before):
    """A node to decompose: its optional inputs, its attributes, and the insertion of its replacement before it."""

    def __init__(self, node: ir.Node) -> None:
        super().__init__(node)
        self.node = node

    def input(self, index: int) -> ir.Value | None:
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def needed(self, index: int) -> ir.Value:
        value = self.input(index)
        if value is None:
            raise CannotFuse(f"{self.node.op_type} has no input {index}")
        return value

    def integer(self, name: str) -> int:
        return self.node.attributes.get_int(name, 0)

    def number(self, name: str, default: float) -> float:
        return self.node.attributes.get_float(name, default)

    def is_used(self, index: int) -> bool:
        outputs = self.node.outputs
        return index < len(outputs) and bool(outputs[index].uses() or outputs[index].is_graph_output())

    def refuse_memory(self, past: Iterable[int]) -> None:
        """Reject a causal attention, and one that reads or writes a state."""
        if self.integer("unidirectional"):
            raise CannotFuse(f"{self.node.op_type} is causal")
        if any(self.input(index) is not None for index in past):
            raise CannotFuse(f"{self.node.op_type} has a state")
        self.refuse_outputs((1, 2, 3), "the keys, values or products")

    def refuse_outputs(self, indices: Sequence[int], what: str) -> None:
        if any(self.is_used(index) for index in indices):
            raise CannotFuse(f"another node uses {what} of {self.node.op_type}")

    def part(self, name: str, *inputs: ir.Value | None, **attributes: float) -> ir.Value:
        """Insert a formula of ``contrib.onnxtxt`` before this node."""
        return self(name, *inputs, domain=FORMULAS, **attributes)

    def split(self, value: ir.Value, parts: Sequence[int]) -> Sequence[ir.Value]:
        """Split a value into parts of these sizes along its last axis."""
        return self.several(len(parts), "Split", value, parts, axis=-1)

    def mean(self, x: ir.Value) -> ir.Value:
        """The mean along the last axis, which is kept."""
        if self.graph.opset_imports[""] < _AXES_ARE_AN_INPUT:
            return self("ReduceMean", x, axes=[-1])
        return self("ReduceMean", x, [-1])

    def real(self, number: float) -> ir.Value:
        return self.constant("contrib", np.array(number, np.float32))

    def like(self, number: float, value: ir.Value) -> ir.Value:
        """A number in the type of a value."""
        return self("CastLike", self.real(number), value)


def tokens_of(value: ir.Value) -> ir.Value:
    """The graph input with the value's sequence dimension, so that all layers share its shape; else the value."""
    inputs = (source for source in ancestors(value, through=_KEEP_TOKENS) if source.producer() is None)
    return next((source for source in inputs if subgraph.rank(source) == 2 and not is_constant(source)), value)
