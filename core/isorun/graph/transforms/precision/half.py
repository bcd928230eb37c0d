"""Converts the weights and activations of a graph to fp16 or bf16. Its inputs and outputs keep their types.

What is said of fp16 here is true of bf16 too, which has the range of fp32 and fewer digits than fp16.

The graph is in the fused form, with its padding removed or not, and is lowered to a dialect afterwards, with the
functions in ``dialects/half/`` where those of fp32 are not suitable. There are three kinds of nodes:

- those that are faster in fp16 (:data:`FASTER`, and the fused operators) are converted,
- those that would lose accuracy (:data:`KEPT`, with the reasons) stay in fp32, with casts in between,
- all others follow their inputs: they stay in fp32 if any computed input is fp32.

A node with a constant that fp16 cannot hold stays in fp32 too, and so do the nodes that read its results until they
are normalized, since these may be as large. The report has the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import UnsupportedModel
from isorun.graph.analysis.evaluate import is_constant
from isorun.graph.analysis.layers import QUANTIZING
from isorun.graph.io.nodes import needed
from isorun.graph.io.shape_inference import infer_shapes
from isorun.graph.matching import subgraph
from isorun.graph.ops import functions

FASTER = frozenset(
    (
        *("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "Attention"),
        *("LayerNormalization", "RMSNormalization"),  # fp32 inside: stash_type
        *("Gelu", "Relu", "Tanh", "Sigmoid"),
    )
)
"""ONNX's operators that are computed in fp16 whatever their inputs are."""

_SUMS = "it adds up many elements: sums exceed the range of fp16, and lose digits before that"
_GROWS = "its results exceed the range of fp16 for inputs well inside it"
_DIVIDES = "divisors as small as those that guard against 0 are 0 in fp16"
_EXACT = "its results are numbers or positions that fp16 would round"
KEPT: Mapping[str, str] = {
    **dict.fromkeys(
        ("ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"), _SUMS
    ),
    **dict.fromkeys(("CumSum", "GlobalAveragePool", "AveragePool", "LpPool", "GlobalLpPool"), _SUMS),
    **dict.fromkeys(("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LpNormalization"), _SUMS),
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "Softplus"), "it adds up exponentials, and fp16 cannot hold what masks a score"
    ),
    **dict.fromkeys(("Exp", "Pow", "ReduceProd", "Cosh", "Sinh"), _GROWS),
    **dict.fromkeys(("Div", "Reciprocal", "Log", "Sqrt"), _DIVIDES),
    "Erf": "1 + erf(x), which GELU computes, has no digits left near -1",
    **dict.fromkeys(("Range", "Resize", "Upsample", "RoiAlign", "GridSample", "NonMaxSuppression", "TopK"), _EXACT),
    **dict.fromkeys(("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial"), _EXACT),
}
"""ONNX's operators that stay in fp32, each with the reason."""

_FLOAT = ir.DataType.FLOAT
LARGEST: Mapping[ir.DataType, float] = {ir.DataType.FLOAT16: 65504.0, ir.DataType.BFLOAT16: 3.3895314e38}
NAMES: Mapping[ir.DataType, str] = {ir.DataType.FLOAT16: "fp16", ir.DataType.BFLOAT16: "bf16"}
_QUANTIZED = QUANTIZING | {"DequantizeLinear", "MatMulNBits"}
_BOUNDED = frozenset(  # whose results stay within the range of fp16 for any input
    (
        *("Softmax", "Tanh", "Sigmoid", "LayerNormalization", "RMSNormalization"),
        *("SkipLayerNormalization", functions.EMBEDDING, functions.RMS_NORM),
    )
)
_FREE = {"Attention": (3,)}  # inputs whose type is independent of the others: a mask
_FEW = 16  # elements: a constant this small is a chosen number, not weights


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that stays in fp32.

    Attributes:
        node: its name.
        operator: its operator.
        reason: why.
    """

    node: str
    operator: str
    reason: str


@dataclass(frozen=True, slots=True)
class HalfReport:
    """The result of a conversion.

    Attributes:
        converted: how many nodes compute in fp16.
        kept: the nodes that stay in fp32 for a reason of their own. Others stay in fp32 because of these.
    """

    converted: int
    kept: tuple[Kept, ...]


def convert(model: ir.Model, half: ir.DataType = ir.DataType.FLOAT16) -> HalfReport:
    """Convert a graph to fp16 or bf16, in place. Weights are checked once, and converted whenever they are read.

    Values that are fp16 already stay so. Sub-graphs (of ``If`` and ``Loop``) stay in fp32.

    Args:
        model: the fused form, or any other graph.
        half: ``FLOAT16`` or ``BFLOAT16``.

    Raises:
        UnsupportedModel: the model is quantized, or no node can be converted.
    """
    name = NAMES[half]
    for node in model.graph.all_nodes():
        if node.op_type in _QUANTIZED:
            place = node.name or node.outputs[0].name
            raise UnsupportedModel(
                f"The model is already quantized ({node.op_type} at {place!r}): converting it to {name} would "
                "separate the 8-bit weights from their products. Use precision='fp32', which runs it without conversion"
            )
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    infer_shapes(model)
    conversion = _Conversion(model, half)
    report = conversion.run()
    if not report.converted and not any(value.dtype == half for value in model.graph.initializers.values()):
        reasons = "; ".join(dict.fromkeys(f"{node.operator}: {node.reason}" for node in report.kept))
        without = "it has no product, convolution, normalization or activation in fp32 that gains from it"
        raise UnsupportedModel(f"Nothing in the model can be converted to {name} ({reasons or without})")
    common.RemoveUnusedNodesPass()(model)
    conversion.rename()
    if any(functions.is_fused(node) for node in model.graph):
        functions.carry(model)
    return report


class _Conversion:
    """One conversion. Values keep their names: ``_converted`` are those that are fp16 now; ``_halves`` and ``_wholes``
    hold the other form of a value, computed where a node needs it."""

    def __init__(self, model: ir.Model, half: ir.DataType) -> None:
        self._half_type, self._name = half, NAMES[half]
        self._graph = model.graph
        self._opset = model.graph.opset_imports.get("", 1)
        self._converted: dict[ir.Value, None] = {}
        self._halves: dict[ir.Value, ir.Value] = {}
        self._wholes: dict[ir.Value, ir.Value] = {}
        self._unfit: dict[ir.Value, tuple[str | None, bool]] = {}
        self._large: dict[ir.Value, None] = {}  # may exceed the range of fp16

    def run(self) -> HalfReport:
        kept, count = [], 0
        for node in list(self._graph):
            if not any(map(self._is_float, (*node.inputs, *node.outputs))):
                continue
            large = next((value for value in node.inputs if self._is_large(value)), None)
            reason = self._reason(node)
            if reason is None and self._gains(node):
                if large is None:
                    count += self._convert(node)
                    continue
                reason = f"its input {large.name!r} may exceed the range of {self._name}"
            if large is not None and node.op_type not in _BOUNDED:
                self._large.update(dict.fromkeys(node.outputs))
            if reason is not None:
                kept.append(Kept(node.name or "", node.op_type, reason))
            for index, value in enumerate(node.inputs) if node.op_type not in ("Shape", "Size") else ():
                if value is not None and value in self._converted:
                    node.replace_input_with(index, self._whole(value))
        self._restore()
        return HalfReport(count, tuple(kept))

    def rename(self) -> None:
        """Give weights in fp16 their original names, if no weight in fp32 still has it."""
        for whole, half in self._halves.items():
            if is_constant(half) and whole.name not in self._graph.initializers:
                half.name = whole.name

    def _is_float(self, value: ir.Value | None) -> bool:
        """Whether a value was fp32 before the conversion."""
        return value is not None and (value.dtype == _FLOAT or value in self._converted)

    def _reason(self, node: ir.Node) -> str | None:
        """Why a node has to stay in fp32; ``None`` where it need not."""
        kinds = {attribute.type for attribute in node.attributes.values()}
        if kinds & {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}:
            return "it contains sub-graphs"
        if not functions.is_fused(node):
            if node.domain != "":
                return f"it is of the domain {node.domain!r}: its behaviour in {self._name} is not known"
            if node.op_type in KEPT:
                return KEPT[node.op_type]
            if node.op_type == "LayerNormalization" and node.attributes.get_int("stash_type", 1) != _FLOAT:
                return "its stash_type is not fp32, so it would compute in half precision inside"
            if any(value is not None and value.dtype is None for value in (*node.inputs, *node.outputs)):
                return "the types of its inputs and outputs are not known"
            if not self._is_defined(node):
                return f"ONNX's opset {self._opset} does not define it for {self._name}"
        return next((reason for value in node.inputs if (reason := self._no_fp16(value)[0]) is not None), None)

    def _is_defined(self, node: ir.Node) -> bool:
        try:
            schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=self._opset)
        except onnx.defs.SchemaError:
            return False
        tensor = f"tensor({self._half_type.name.lower()})"
        for formals, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
            for index, value in enumerate(values):
                if self._is_float(value) and tensor not in formals[min(index, len(formals) - 1)].types:
                    return False
        return True

    def _no_fp16(self, value: ir.Value | None) -> tuple[str | None, bool]:
        """Why fp16 cannot hold a constant, ``None`` for any other value; and whether it is too large for it."""
        if value is None or value.dtype != _FLOAT or not is_constant(value):
            return None, False
        if value not in self._unfit:
            self._unfit[value] = _unfit(value, self._half_type)
        return self._unfit[value]

    def _is_large(self, value: ir.Value | None) -> bool:
        return value in self._large or self._no_fp16(value)[1]

    def _gains(self, node: ir.Node) -> bool:
        """Whether a node is converted: it is faster in fp16, or its inputs are fp16."""
        if functions.is_fused(node) or (node.domain == "" and node.op_type in FASTER):
            return True
        floats = [value for value in node.inputs if value is not None and self._is_float(value)]
        computed = [value for value in floats if not is_constant(value)]
        if node.op_type == "Cast" and node.attributes.get_int("to", 0) != _FLOAT:
            return False  # to numbers that rounding would change
        return bool(floats) and all(value in self._converted for value in computed)

    def _convert(self, node: ir.Node) -> bool:
        """Convert the inputs of a node to fp16. Returns whether its outputs are fp16, too."""
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype == _FLOAT and index not in _FREE.get(node.op_type, ()):
                node.replace_input_with(index, self._half(value))
        if node.op_type == "Cast":
            node.attributes["to"] = ir.AttrInt64("to", int(self._half_type))
        floats = [value for value in node.outputs if value.dtype == _FLOAT]
        for value in floats:
            value.type = ir.TensorType(self._half_type)
            self._converted[value] = None
        return bool(floats)

    def _restore(self) -> None:
        """Make the outputs, and what sub-graphs read, fp32 again."""
        for value in list(self._converted):
            for use in list(value.uses()):
                if use.node.graph is not self._graph:
                    use.node.replace_input_with(use.idx, self._whole(value))
        for index, value in enumerate(self._graph.outputs):
            if value in self._converted:
                whole = self._whole(value)
                name, value.name = value.name, f"{value.name}.{self._name}"
                whole.name = name
                self._graph.outputs[index] = whole

    def _half(self, value: ir.Value) -> ir.Value:
        if value not in self._halves:
            if is_constant(value):
                tensor = subgraph.converted(needed(value.const_value), self._half_type)
                self._halves[value] = subgraph.constant(self._graph, f"{value.name}.{self._name}", tensor)
            else:
                self._halves[value] = self._cast(value, self._half_type, self._name)
        return self._halves[value]

    def _whole(self, value: ir.Value) -> ir.Value:
        if value not in self._wholes:
            self._wholes[value] = self._cast(value, _FLOAT, "fp32")
        return self._wholes[value]

    def _cast(self, value: ir.Value, dtype: ir.DataType, label: str) -> ir.Value:
        node = ir.node("Cast", [value], {"to": int(dtype)}, name=f"{value.name}.{label}")
        producer = value.producer()
        if producer is None:
            self._graph[0].prepend(node)
        else:
            producer.append(node)
        cast = node.outputs[0]
        cast.name, cast.type, cast.shape = f"{value.name}.{label}", ir.TensorType(dtype), value.shape
        return cast


def _unfit(value: ir.Value, half: ir.DataType) -> tuple[str | None, bool]:
    """Why half precision cannot hold a constant, and whether it is too large for it."""
    array = needed(value.const_value).numpy()
    if not array.size:
        return None, False
    greatest = max(float(array.max()), -float(array.min()))
    if np.isinf(greatest):  # fp16 has infinities
        greatest = float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
    largest = LARGEST[half]
    if greatest > largest:
        return (
            f"its constant {value.name!r} has values up to {greatest:.3g}, and {NAMES[half]} ends at {largest:.6g}",
            True,
        )
    if array.size <= _FEW and np.any((array != 0) & (array.astype(half.numpy()) == 0)):
        return f"its constant {value.name!r} would be 0 in {NAMES[half]}", False
    return None, False
