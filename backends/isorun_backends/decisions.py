"""What a double-precision copy of a graph keeps in the model's own type: numbers on whose rounding a decision depends.

A bucket of T5 is the integer part of a logarithm, a mask is a comparison: in double precision a number at the boundary
falls on the other side, and every other backend appears to be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

SUFFIX = ":own"
"""Ends the names of what keeps its type: it is not widened."""

# Operators that decide, besides all that return integers or booleans.
_DECIDING = frozenset(["Ceil", "Floor", "Hardmax", "Mod", "Round", "Sign", "TopK"])
# Operators through which inputs and constants are followed. Products of matrices are left out: what they return is the
# network's own numbers, which every backend rounds in another way.
_FOLLOWED = _DECIDING | {
    *("Abs", "Add", "Div", "Exp", "Log", "Max", "Mean", "Min", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "Sqrt"),
    *("Sub", "Cast", "CastLike", "Clip", "Constant", "ConstantOfShape", "CumSum", "Identity", "OneHot", "Range", "Sum"),
    *("Where", "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Pad", "Reshape", "Slice"),
    *("Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"),
    *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"),
}
_IGNORED = frozenset(["Shape", "Size"])  # the numbers do not matter to them
_LARGEST = 2**20  # elements of a constant; a larger one is a table of weights


def separate(proto: onnx.ModelProto) -> None:
    """Compute what decisions depend on beside the rest, in place, under names that end in :data:`SUFFIX`."""
    graph = _Graph(proto)
    if graph.kept:
        graph.rewrite(proto.graph)


class _Graph:
    """What the nodes of a graph and of the bodies of If, Loop and Scan depend on; names are unique among them."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        from onnx import TensorProto

        floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
        self._types = _types(proto)
        self._floats = {name for name, kind in self._types.items() if kind in floats}
        # The inputs of the nodes that compute the floats that depend on inputs and constants only.
        self._sources: dict[str, Iterable[str]] = {}
        self._deciding: set[str] = set()  # the outputs of nodes that decide
        self._fed = [value.name for value in proto.graph.input if value.name in self._floats]
        self._follow(proto.graph, dict.fromkeys(self._fed, ()))
        self.kept: set[str] = set()
        """The floats that decisions depend on."""
        pending = [name for output in self._deciding for name in self._sources[output]]
        while pending:
            name = pending.pop()
            if name not in self.kept:
                self.kept.add(name)
                pending += self._sources[name]

    def _follow(self, graph: onnx.GraphProto, fed: dict[str, Iterable[str]]) -> None:
        for tensor in graph.initializer:
            if tensor.name in self._floats and math.prod(tensor.dims) <= _LARGEST:
                self._sources[tensor.name] = ()
        self._sources |= fed
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self._follow(attribute.g, {})
            inputs, outputs = list(filter(None, node.input)), list(filter(None, node.output))
            floats = [name for name in inputs if name in self._floats]
            if node.domain or not self._types.keys() >= {*inputs, *outputs} or not self._sources.keys() >= {*floats}:
                continue
            plain = not any(attribute.HasField("g") for attribute in node.attribute)
            integers = plain and self._floats.isdisjoint(outputs) and node.op_type not in _IGNORED
            deciding = bool(floats) and (node.op_type in _DECIDING or integers)
            if deciding:
                self._deciding.update(outputs)
            if deciding or node.op_type in _FOLLOWED:
                self._sources |= dict.fromkeys(outputs, floats)

    def rewrite(self, graph: onnx.GraphProto, *, outermost: bool = True) -> None:
        from onnx import helper

        fed = self._fed if outermost else []
        nodes = [helper.make_node("Cast", [n], [n + SUFFIX], to=self._types[n]) for n in fed if n in self.kept]
        for tensor in list(graph.initializer):
            if tensor.name in self.kept and tensor.name not in fed:
                graph.initializer.add().CopyFrom(tensor)
                graph.initializer[-1].name += SUFFIX
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self.rewrite(attribute.g, outermost=False)
            if not self._deciding.isdisjoint(node.output):
                nodes += self._decide(node)
                continue
            if not self.kept.isdisjoint(node.output):
                copy = type(node)()
                copy.CopyFrom(node)
                self._keep_inputs(copy)
                copy.output[:] = [name and name + SUFFIX for name in node.output]
                nodes.append(copy)
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)

    def _decide(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """A node that decides: it reads what keeps its type; floats that it returns are widened after it."""
        from onnx import helper

        decision = type(node)()
        decision.CopyFrom(node)
        self._keep_inputs(decision)
        floats = [name for name in node.output if name in self._floats]
        decision.output[:] = [name + SUFFIX if name in floats else name for name in node.output]
        return [decision, *(helper.make_node("Cast", [n + SUFFIX], [n], to=self._types[n]) for n in floats)]

    def _keep_inputs(self, node: onnx.NodeProto) -> None:
        node.input[:] = [name + SUFFIX if name in self.kept else name for name in node.input]


def _types(proto: onnx.ModelProto) -> dict[str, int]:
    """The element types of tensors, by name. Inferred without the weights, which may be too large for it."""
    import onnx

    lean = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    lean.graph.name = proto.graph.name
    for field in ("node", "input", "output", "value_info"):
        getattr(lean.graph, field).extend(getattr(proto.graph, field))
    fed = {value.name for value in proto.graph.input}
    for tensor in proto.graph.initializer:
        if tensor.name not in fed:
            lean.graph.value_info.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    types: dict[str, int] = {}
    pending = [onnx.shape_inference.infer_shapes(lean).graph]
    while pending:
        graph = pending.pop()
        types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        for value in (*graph.input, *graph.output, *graph.value_info):
            types[value.name] = value.type.tensor_type.elem_type
        pending += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return {name: kind for name, kind in types.items() if kind}
