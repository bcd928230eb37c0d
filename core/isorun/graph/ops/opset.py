"""Moving a graph from one version of ONNX's operators to another, where its nodes mean the same in both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.ops.adding import Beside

# Operators whose versions from 13 to 25 differ in the types that they take, or in attributes that have a default
# with the older meaning. (Seen in ONNX's changelog of operators.)
_UNCHANGED = frozenset(
    (
        *("Add", "And", "Cast", "CastLike", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv", "Cos", "CumSum"),
        *("DequantizeLinear", "Div", "QuantizeLinear"),
        *("Dropout", "Equal", "Erf", "Expand", "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "Gemm"),
        *("GlobalAveragePool", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "If", "IsInf", "IsNaN"),
        *("LeakyRelu", "LessOrEqual", "Loop", "MatMul", "Mul", "Neg", "NonZero", "Not", "Or", "Pow", "Range", "Relu"),
        *("Reshape", "Round", "Shape", "Sin", "Size", "Slice", "Softmax", "Softplus", "Sqrt", "Squeeze", "Sub"),
        *("Tanh", "Transpose", "Trilu", "Unsqueeze", "Where"),
    )
)
_REDUCTIONS = frozenset(
    f"Reduce{what}" for what in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
)
_REDUCTIONS_CHANGED = 18  # from then on the axes are an input
_PAD_AXES = 3  # the index of an input of Pad that it has since 18
_SYMMETRIC = 19  # from then on Resize has half_pixel_symmetric
_NORMALIZES = 17  # from then on there is LayerNormalization
_FIRST_READ = 13


def move(graph: ir.Graph | ir.Function, target: int, label: str = "The model") -> None:
    """Bring a graph, or a function, to an opset, in place.

    Args:
        graph: the graph or function.
        target: the opset.
        label: its name in error messages.

    Raises:
        UnsupportedModel: nodes are defined differently there. The graph is as it was.
    """
    current = graph.opset_imports.get("", 1)
    if current == target:
        return
    changes: list[tuple[Callable[[ir.Node, int], None], ir.Node]] = []
    unknown: set[str] = set()
    for node in graph.all_nodes():
        if node.domain != "" or not differs(node.op_type, current, target):
            continue
        change = _drop_usual if node.op_type in _UNCHANGED else _change(node, current, target)
        if change is _drop_usual and not _usual(node, current, target):
            change = None
        if change is None:
            unknown.add(node.op_type)
        else:
            changes.append((change, node))
    if min(current, target) < _FIRST_READ:
        unknown.update(node.op_type for _, node in changes)
    if unknown:
        raise UnsupportedModel(
            f"{label} is written in opset {current}; opset {target} defines {', '.join(sorted(unknown))} differently",
            sorted(unknown),
        )
    for change, node in changes:
        change(node, target)
    graph.opset_imports[""] = target


def differs(operator: str, current: int, target: int, domain: str = "") -> bool:
    """Whether two versions of a domain define an operator differently, or one of them does not know it."""
    try:
        since = {onnx.defs.get_schema(operator, opset, domain).since_version for opset in (current, target)}
    except onnx.defs.SchemaError:  # one of the two has no such operator
        return True
    return len(since) > 1


def _change(node: ir.Node, current: int, target: int) -> Callable[[ir.Node, int], None] | None:
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None  # in a function: each call may give another value
    if node.op_type in _REDUCTIONS:
        crosses = min(current, target) < _REDUCTIONS_CHANGED <= max(current, target)
        axes = _axes(node)
        if not crosses or axes is None:
            return None if axes is None else _keep
        return _reduction if axes or not node.attributes.get_int("noop_with_empty_axes", 0) else None
    if node.op_type == "Split":
        return _split
    if node.op_type == "Pad":
        return _keep if len(node.inputs) < _PAD_AXES + 1 else None
    if node.op_type == "Resize":
        mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
        return _drop_usual if mode != "half_pixel_symmetric" or min(current, target) >= _SYMMETRIC else None
    if node.op_type == "LayerNormalization" and target >= _NORMALIZES:
        return _keep  # ONNX Runtime writes it in graphs of earlier opsets too
    if node.op_type in ("ScatterElements", "ScatterND"):  # without a reduction they are the same in all
        return _drop_usual if node.attributes.get_string("reduction", "none") == "none" else None
    if node.op_type == "Gelu" and target < 20:
        tanh = "approximate" in node.attributes and node.attributes["approximate"].as_string() != "none"
        return None if tanh else _gelu
    return None


def _usual(node: ir.Node, current: int, target: int) -> bool:
    """Whether the attributes that the target does not know have the values that they have where they are not given."""
    before, after = _attributes(node.op_type, current), _attributes(node.op_type, target)
    return all(
        name in after or (name in before and not attribute.is_ref() and attribute.value == _default(before[name]))
        for name, attribute in node.attributes.items()
    )


def _default(attribute: onnx.defs.OpSchema.Attribute) -> object:
    """``None`` if it has none."""
    default = attribute.default_value
    return None if default.type == onnx.AttributeProto.UNDEFINED else ir.serde.deserialize_attribute(default).value


def _drop_usual(node: ir.Node, target: int) -> None:
    after = _attributes(node.op_type, target)
    for name in [name for name in node.attributes if name not in after]:
        del node.attributes[name]


def _attributes(operator: str, opset: int) -> Mapping[str, onnx.defs.OpSchema.Attribute]:
    """The attributes of an operator; none, where the opset has no such operator."""
    try:
        return onnx.defs.get_schema(operator, max_inclusive_version=opset).attributes
    except onnx.defs.SchemaError:
        return {}


def _keep(_node: ir.Node, _target: int) -> None:
    """Another version of the same."""


def _axes(node: ir.Node) -> list[int] | None:
    """The axes that are an input of a reduction, none if there is no such input; ``None`` if they are not constant."""
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is None:
        return []
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else [int(axis) for axis in tensor.numpy()]


def _reduction(node: ir.Node, target: int) -> None:
    if target >= _REDUCTIONS_CHANGED and "axes" in node.attributes:
        numbers = list(node.attributes["axes"].as_ints())
        del node.attributes["axes"]
        node.resize_inputs(2)
        node.replace_input_with(1, _beside(node).integers(numbers))
    elif target < _REDUCTIONS_CHANGED:
        if axes := _axes(node):
            node.attributes["axes"] = ir.AttrInt64s("axes", axes)
        node.resize_inputs(1)
        node.attributes.pop("noop_with_empty_axes", None)


def _split(node: ir.Node, target: int) -> None:
    """In parts of given sizes it means the same in all; in equal parts their number has to be said since 18, from which
    on the last one may be smaller."""
    if len(node.inputs) > 1:
        return
    shape, axis, count = node.inputs[0].shape, node.attributes.get_int("axis", 0), len(node.outputs)  # type: ignore[union-attr]
    size = None if shape is None else shape[axis]
    if target < _REDUCTIONS_CHANGED and isinstance(size, int) and size % count:
        part = -(-size // count)
        node.resize_inputs(2)
        node.replace_input_with(1, _beside(node).integers([part] * (count - 1) + [size - part * (count - 1)]))
    if target >= _REDUCTIONS_CHANGED:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))
    else:
        node.attributes.pop("num_outputs", None)


def _gelu(node: ir.Node, _target: int) -> None:
    """x (1 + erf(x / sqrt 2)) / 2 in parts."""
    x, op, old = node.inputs[0], _beside(node), node.outputs[0]
    root, unit, half = (op.constant("", np.array(number, np.float32)) for number in (math.sqrt(2), 1.0, 0.5))
    new = op("Mul", op("Mul", x, op("Add", op("Erf", op("Div", x, root)), unit)), half)
    if old.is_graph_output():
        new.name, new.type, new.shape = old.name, old.type, old.shape
        old.name = None
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def _beside(node: ir.Node) -> Beside:
    return Beside(node, f"{node.outputs[0].name}.part")
