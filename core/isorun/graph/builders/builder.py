"""Construction of a graph from weights, which are read one at a time as the file is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from isorun.graph.ops import functions
from isorun.graph.ops import positions as position_ops
from isorun.graph.ops.adding import Named, Nodes

IR_VERSION = 10


class Weights(Protocol):
    """A source of weights, by Hugging Face's tensor names."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Reject a tensor that is missing or has another shape. Called for all tensors before any is read."""

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Read a tensor of that name and shape, float32."""


class Builder:
    """Adds nodes and weights to a graph.

    Args:
        weights: where they are read.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}
        self._names: Counter[str] = Counter()
        self._positions: ir.Value | None = None

    def graph(self, name: str, inputs: Mapping[str, ir.Value], outputs: Sequence[ir.Value]) -> ir.Model:
        """The model of what was added."""
        opset = functions.opset(functions.BODIES)
        graph = ir.Graph(
            list(inputs.values()),
            list(outputs),
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports={"": opset},
            name=name,
        )
        model = ir.Model(graph, ir_version=IR_VERSION, producer_name="isorun")
        functions.carry(model)
        return model

    @staticmethod
    def input(name: str) -> ir.Value:
        """An input, int64 (batch, sequence)."""
        return ir.val(name, ir.DataType.INT64, ["batch", "sequence"])

    def under(self, prefix: str) -> Nodes:
        """Adds nodes whose names are their operators, after a prefix."""
        return Named(self, prefix)

    def positions(self, ids: ir.Value) -> ir.Value:
        """0, 1, 2 and so on for ids (B, S): (1, S), the same value for all that read it."""
        if self._positions is None:
            self._positions = position_ops.in_order(self.under("embeddings.positions"), ids)
        return self._positions

    def output(self, name: str, value: ir.Value, *shape: int | str) -> ir.Value:
        """Add a graph output; ``Identity`` keeps the name of the value, which other nodes may read."""
        output = self.node("Identity", f"output.{name}", [value])
        output.name = name
        output.type = ir.TensorType(ir.DataType.FLOAT)
        output.shape = ir.Shape(["batch", *shape])
        return output

    def dense(self, prefix: str, value: ir.Value, rows: int, columns: int, name: str | None = None) -> ir.Value:
        """value @ W without the bias, which the following fused operator adds. ``name`` defaults to the prefix."""
        weight = self.joined(f"{prefix}.weight", {f"{prefix}.weight": (columns, rows)})
        return self.node("MatMul", name or prefix, [value, weight])

    def weight(self, name: str, *shape: int) -> ir.Value:
        return self.computed(name, {name: shape}, lambda weight: weight, shape)

    def joined(self, name: str, parts: Mapping[str, tuple[int, ...]]) -> ir.Value:
        """Tensors, given with their shapes, side by side: matrices transposed, or vectors."""
        shape = (*next(iter(parts.values()))[1:], sum(shape[0] for shape in parts.values()))
        return self.computed(name, parts, lambda *read: np.concatenate([part.T for part in read], axis=-1), shape)

    def slice(self, name: str, tensor: str, shape: tuple[int, ...], begin: int, end: int) -> ir.Value:
        """Some rows of a matrix, transposed, or some numbers of a vector."""
        part = (*shape[1:], end - begin)
        return self.computed(name, {tensor: shape}, lambda read: np.ascontiguousarray(read[begin:end].T), part)

    def computed(
        self,
        name: str,
        stored: Mapping[str, tuple[int, ...]],
        make: Callable[..., np.ndarray],
        shape: tuple[int, ...],
    ) -> ir.Value:
        """A weight that is made of stored tensors, given with their shapes, whenever it is read."""
        for tensor, size in stored.items():
            self.weights.check(tensor, size)

        def read() -> ir.TensorProtocol:
            return ir.tensor(make(*(self.weights.read(tensor, size) for tensor, size in stored.items())))

        lazy = ir.LazyTensor(read, dtype=ir.DataType.FLOAT, shape=ir.Shape(shape), name=name)
        return self._initializer(name, lazy)

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        return self._initializer(name, ir.tensor(array, name=name))

    def _initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Add an initializer, unless there is one of that name."""
        if name not in self._initializers:
            self._initializers[name] = ir.val(name, const_value=tensor)
        return self._initializers[name]

    def fused(self, kind: str, name: str, inputs: Sequence[ir.Value | None], **attributes: float) -> ir.Value:
        return self.node(kind, name, inputs, domain=functions.DOMAIN, **attributes)

    def node(
        self, kind: str, name: str, inputs: Sequence[ir.Value | None], domain: str = "", **attributes: float | list[int]
    ) -> ir.Value:
        node = ir.node(kind, list(inputs), attributes, domain=domain)
        self.add(node, name)
        return node.outputs[0]

    def add(self, node: ir.Node, name: str) -> None:
        """Add a node, with a number in its name if there is one of that name."""
        self._names[name] += 1
        node.name = f"{name}.{self._names[name]}" if self._names[name] > 1 else name
        self._nodes.append(node)
        for index, value in enumerate(node.outputs):
            value.name = f"{node.name}:{index}"
