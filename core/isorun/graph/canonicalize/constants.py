"""Constant expressions and operators without effect: what does not depend on the inputs is computed here.

Large constants are computed when the model is written. :func:`simplify` does all of it, with shapes inferred, for the
dialect ``primitive``, whose engines may fold nothing themselves.
"""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.graph.analysis import tokens
from isorun.graph.analysis.evaluate import CannotEvaluate, array, is_constant, run_node
from isorun.graph.io.nodes import needed
from isorun.graph.io.shape_inference import infer_shapes
from isorun.graph.matching import subgraph

_logger = logging.getLogger(__name__)

_FOLDED = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape", "Cos", "CumSum", "Div"),
        *("Einsum", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND"),
        *("Gemm", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "MatMul"),
        *("Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "OneHot", "Or", "Pad", "Pow", "Range", "Reciprocal"),
        *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Reshape", "Round"),
        *("ScatterElements", "ScatterND", "Shape", "Sigmoid", "Sign", "Sin", "Size", "Slice", "Softmax", "Split"),
        *("Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor"),
    )
)
"""What exporters leave of constants. ONNX's implementations of others may be wrong (docs/runtime-faults.md), and
``DequantizeLinear`` sets the precision of the operators around it."""
_MAX_FOLDED = 1 << 16  # bytes; a larger constant is computed when it is written
_MOVING = frozenset(("Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"))
_SLICE_END = (
    2**31 - 1
)  # as the end of a slice, this or more means the last element; exporters write 2^31 - 1 or 2^63 - 1


def simplify(model: ir.Model) -> None:
    """Compute what does not depend on the inputs, sizes of fixed dimensions included, in place."""
    infer_shapes(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    remove_no_ops(model.graph)
    _compute_shapes(model.graph)
    fold(model)
    common.DeduplicateInitializersPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)


def _compute_shapes(graph: ir.Graph) -> None:
    """Replace ``Shape`` of fixed dimensions."""
    for node in list(graph):
        if node.domain != "" or node.op_type != "Shape" or node.outputs[0].is_graph_output():
            continue
        shape = None if node.inputs[0] is None else node.inputs[0].shape
        if shape is None:
            continue
        dimensions = shape[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(shape))]
        sizes = [size for size in dimensions if isinstance(size, int)]
        if len(sizes) == len(dimensions):
            subgraph.replace_node(node, subgraph.Before(node).integers(sizes))


def remove_no_ops(graph: ir.Graph) -> None:
    """Remove identities, dropouts, full slices, casts to the same type, and the expansion of an operand to the shape of
    the other one, in place."""
    for node in list(graph):
        if node.domain != "" or not node.inputs or node.inputs[0] is None:
            continue
        source = node.inputs[0]
        if node.op_type == "Expand":
            _take_before_expansion(node, source)
        if node.op_type == "CastLike" and node.inputs[1] is not None and node.inputs[1].dtype is not None:
            node = _as_cast(graph, node, node.inputs[1].dtype)
        if node.op_type == "Cast":
            no_op = source.dtype is not None and source.dtype == node.attributes["to"].as_int()
        elif node.op_type == "Dropout":
            training = node.inputs[2] if len(node.inputs) > 2 else None
            mask_used = len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output())
            no_op = not mask_used and (training is None or subgraph.scalar(training) == 0)
        else:
            no_op = node.op_type == "Identity" or (node.op_type == "Slice" and _is_full_slice(node))
        if no_op and not node.outputs[0].is_graph_output():
            ir.convenience.replace_all_uses_with(node.outputs[0], source)
            graph.remove(node, safe=True)


def _take_before_expansion(expand: ir.Node, source: ir.Value) -> None:
    """Have sums, products and the like of two operands broadcast one to the other themselves."""
    (expanded,) = expand.outputs
    shape = None if expand.inputs[1] is None else expand.inputs[1].producer()
    is_of = None if shape is None or shape.op_type != "Shape" or not is_whole_shape(shape) else shape.inputs[0]
    for reader, index in [*expanded.uses()]:
        if reader.domain == "" and reader.op_type in tokens.ARITHMETIC:
            operand = reader.inputs[1 - index]
            if operand is not None and (operand is is_of or _are_equal(operand.shape, expanded.shape)):
                reader.replace_input_with(index, source)


def _are_equal(shape: ir.Shape | None, other: ir.Shape | None) -> bool:
    """Whether two shapes are known to be the same; PyTorch's newer exporter names the dimensions of every value."""
    return shape is not None and shape == other and not any(shape.is_unknown_dim(axis) for axis in range(len(shape)))


def is_whole_shape(node: ir.Node) -> bool:
    """Whether a ``Shape`` has all dimensions. ONNX Runtime writes a start of 0."""
    return not node.attributes.get_int("start", 0) and "end" not in node.attributes


def _is_full_slice(node: ir.Node) -> bool:
    """Whether a ``Slice`` selects every element."""
    if not all(value is None or is_constant(value) for value in node.inputs[1:]):
        return False
    starts, ends, _, *steps = [None if value is None else array(value) for value in [*node.inputs[1:], None][:4]]
    is_whole = not needed(starts).any() and (needed(ends) >= _SLICE_END).all()
    return bool(is_whole and all(step is None or (step == 1).all() for step in steps))


def _as_cast(graph: ir.Graph, node: ir.Node, dtype: ir.DataType) -> ir.Node:
    """Replace a ``CastLike`` of known type with ``Cast``, which does not depend on the other value."""
    cast = ir.node("Cast", node.inputs[:1], {"to": int(dtype)}, name=node.name)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [cast], node.outputs, cast.outputs)
    return cast


def fold(model: ir.Model) -> None:
    """Compute nodes whose inputs are constants, in place."""
    opset = model.graph.opset_imports.get("", 0)
    for node in list(model.graph):
        if not _is_constant_expression(node) or any(value.is_graph_output() for value in node.outputs):
            continue
        tensors = _evaluated(node, opset)
        for output, tensor in zip(node.outputs, tensors, strict=False):
            value = subgraph.constant(model.graph, output.name or f"{node.name}.folded", tensor)
            ir.convenience.replace_all_uses_with(output, value)
        if tensors:
            model.graph.remove(node, safe=True)


def mark(model: ir.Model) -> bool:
    """Note the constants that :func:`fold` would compute, as ``const_value``, without a change of the graph.

    Returns:
        Whether there are any.
    """
    opset, is_marked = model.graph.opset_imports.get("", 0), False
    for node in model.graph.all_nodes():
        if node.domain == "" and node.op_type == "Constant":
            node.outputs[0].const_value = ir.convenience.get_const_tensor(node.outputs[0])
        elif _is_constant_expression(node):
            for output, tensor in zip(node.outputs, _evaluated(node, opset), strict=False):
                output.const_value, is_marked = tensor, True
    return is_marked


def _is_constant_expression(node: ir.Node) -> bool:
    is_known = node.domain == "" and node.op_type in _FOLDED and len(node.inputs) > 0
    return is_known and all(value is None or is_constant(value) for value in node.inputs)


def _evaluated(node: ir.Node, opset: int) -> list[ir.TensorProtocol]:
    """The outputs of a node whose inputs are constants; empty if they are too large or cannot be evaluated."""
    source, *others = (None if value is None else value.const_value for value in node.inputs)
    rest = [None if tensor is None else tensor.numpy() for tensor in others]
    if source is not None and node.op_type == "Cast":
        dtype = ir.DataType(node.attributes["to"].as_int())
        if max(source.nbytes, source.size * dtype.itemsize) > _MAX_FOLDED:
            return [subgraph.converted(source, dtype)]
    if source is not None and source.nbytes > _MAX_FOLDED:
        return _moved_constant(node, source, rest, opset) if node.op_type in _MOVING else []
    try:
        results = run_node(node, [None if source is None else source.numpy(), *rest], opset)
    except CannotEvaluate as why:
        _logger.debug("not folded: %s", why)
        return []
    arrays = [np.asarray(result) for result in results]
    return [ir.tensor(array) for array in arrays] if all(array.nbytes <= _MAX_FOLDED for array in arrays) else []


def _moved_constant(
    node: ir.Node, source: ir.TensorProtocol, others: list[np.ndarray | None], opset: int
) -> list[ir.TensorProtocol]:
    """A large constant with its elements rearranged, computed whenever it is read."""

    def make(index: int) -> np.ndarray:
        return run_node(node, [source.numpy(), *others], opset)[index]

    # The resulting shapes, computed on an array that takes no memory.
    placeholder = np.broadcast_to(np.zeros((), np.int8), tuple(int(size) for size in source.shape))  # type: ignore[arg-type]
    shapes = [result.shape for result in run_node(node, [placeholder, *others], opset)]
    return [subgraph.lazy(partial(make, index), source.dtype, shape) for index, shape in enumerate(shapes)]
