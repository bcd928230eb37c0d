"""Parts of a graph as graphs of their own, with the values at their borders as inputs and outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.analysis.evaluate import reads


def expose_values(model: ir.Model) -> list[str]:
    """Make every value that a node computes an output of the graph, in place.

    Returns:
        Their names, in the order of the graph; without those of sequences, optionals and maps.
    """
    values = [value for node in model.graph for value in node.outputs if value.name and _is_tensor(value)]
    for value in values:
        value.type = value.type or _type_of(value)
    outputs = [value for value in model.graph.outputs if value not in values and _is_tensor(value)]
    model.graph.outputs[:] = [*values, *outputs]
    return [value.name for value in values if value.name]


class Cutter:
    """Cuts parts out of a graph.

    Args:
        model: the whole model, which stays unchanged.
        known: the arrays of the model's inputs and of the values that its nodes compute.
    """

    def __init__(self, model: ir.Model, known: Mapping[str, np.ndarray]) -> None:
        self._model, self._known = model, known
        self._readers: dict[ir.Value, set[ir.Node]] = defaultdict(set)
        for node in model.graph:
            for value in reads(node):
                self._readers[value].add(node)

    def cut(self, nodes: Sequence[ir.Node]) -> ir.Model:
        """A model of some nodes of the graph. Where the graph declares no shape, it is that of the known array.

        Its outputs are the values that the graph returns, that other nodes read, or that nothing reads.

        Raises:
            UnsupportedModel: a value at the border is not a tensor that is known.
        """
        inside = set(nodes)
        computed = {value for node in nodes for value in node.outputs}
        read = dict.fromkeys(value for node in nodes for value in reads(node) if value.graph is self._model.graph)
        weights = {value for value in read if value.is_initializer() and not value.is_graph_input()}
        inputs = [value for value in read if value not in computed and value not in weights]
        outputs = [value for node in nodes for value in node.outputs if value.name and self._leaves(value, inside)]
        for value in (*inputs, *outputs):
            if value.name not in self._known:
                raise UnsupportedModel(f"The value {value.name!r} is not a tensor: the graph cannot be cut there")
        graph = ir.convenience.extract(self._model.graph, inputs, outputs)
        for value in (*graph.inputs, *graph.outputs):
            array = self._known[value.name or ""]
            value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
            value.shape = value.shape or ir.Shape(array.shape)
        functions = self._model.functions
        is_called = any(node.op_identifier() in functions for node in graph.all_nodes())
        return ir.Model(
            graph, ir_version=self._model.ir_version, functions=list(functions.values()) if is_called else ()
        )

    def _leaves(self, value: ir.Value, inside: set[ir.Node]) -> bool:
        readers = self._readers[value]
        return value.is_graph_output() or not readers or not readers <= inside


def _type_of(value: ir.Value) -> ir.TensorType:
    """The type of what an operator that ONNX does not know computes: of its zero point, the last input of integers."""
    node = value.producer()
    if node is not None and node.op_type.startswith(("QuantizeLinear", "QLinear", "QGemm")):
        integers = [read.dtype for read in node.inputs if read is not None and read.dtype and read.dtype.is_integer()]
        return ir.TensorType(integers[-1] if integers else ir.DataType.UINT8)
    return ir.TensorType(ir.DataType.FLOAT)


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)
