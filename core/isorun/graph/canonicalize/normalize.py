"""Canonicalization of what exporters write in several ways, before fusion.

The model's functions are inlined. Constant expressions are folded (large ones when the model is written). Identities,
dropouts and casts to the same type are removed. A dense ``Gemm`` becomes ``MatMul`` and ``Add``. Common subexpressions
are merged. A decomposed layer normalization, recognized numerically, becomes ``LayerNormalization``.
"""

from __future__ import annotations

import logging
from functools import partial

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.graph.analysis.evaluate import CannotEvaluate, array, is_constant, run_node, sizes
from isorun.graph.canonicalize import contrib, dedup_weights, layer_normalization
from isorun.graph.io import files
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import FusionReport
from isorun.graph.ops import functions, inline

_logger = logging.getLogger(__name__)

_NOT_FOLDED = frozenset(
    (
        *("Constant", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"),
        *("DequantizeLinear", "QuantizeLinear"),  # they set the precision of the operators around them
    )
)
_MAX_FOLDED = 1 << 16  # bytes; a larger constant is computed when it is written
_MOVING = frozenset(("Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"))
_SLICE_END = (
    2**31 - 1
)  # as the end of a slice, this or more means the last element; exporters write 2^31 - 1 or 2^63 - 1


def normalize(model: ir.Model, report: FusionReport) -> None:
    """Canonicalize a model in place. Its inputs, outputs and results are unchanged."""
    if any(domain != functions.DOMAIN for domain, *_ in model.functions):
        inline.InlinePass()(model)
        files.check_files(model)
    contrib.expand(model, report)
    common.ShapeInferencePass(check_type=False, strict_mode=False)(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.DeduplicateInitializersPass()(model)
    _remove_no_ops(model.graph)
    _canonicalize_operands(model.graph)
    _split_gemms(model.graph)
    _fold_widths(model.graph)
    _fold(model)
    _remove_no_ops(model.graph)
    common.DeduplicateInitializersPass()(model)
    dedup_weights.deduplicate(model.graph)
    common.CommonSubexpressionEliminationPass()(model)
    layer_normalization.fuse(model)
    for node in list(model.graph):
        if node.domain == "" and node.op_type == "MatMul":
            _unflatten(model, node)
    common.RemoveUnusedNodesPass()(model)


def _remove_no_ops(graph: ir.Graph) -> None:
    for node in list(graph):
        if node.domain != "" or not node.inputs or node.inputs[0] is None:
            continue
        source = node.inputs[0]
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


def _is_full_slice(node: ir.Node) -> bool:
    """Whether a ``Slice`` selects every element."""
    if not all(value is None or is_constant(value) for value in node.inputs[1:]):
        return False
    starts, ends, _, steps = [*node.inputs[1:], None, None][:4]
    assert starts is not None
    assert ends is not None
    return (
        not array(starts).any()
        and bool((array(ends) >= _SLICE_END).all())
        and (steps is None or bool((array(steps) == 1).all()))
    )


def _canonicalize_operands(graph: ir.Graph) -> None:
    """Write equivalent forms in one way: a constant is the last operand of a sum or product, the last axis is -1, and
    equal split sizes are implicit."""
    for node in graph:
        if node.domain != "":
            continue
        if node.op_type in ("Add", "Mul") and is_constant(node.inputs[0]) and not is_constant(node.inputs[1]):
            constant, other = node.inputs
            node.replace_input_with(0, other)
            node.replace_input_with(1, constant)
        elif node.op_type == "Split":
            _canonicalize_split(node, graph.opset_imports[""])
        elif node.op_type == "Squeeze" and len(node.inputs) == 2 and node.inputs[0] is not None:
            last, axes = (subgraph.rank(node.inputs[0]) or 0) - 1, node.inputs[1]
            if last > 0 and axes is not None and is_constant(axes) and array(axes).tolist() == [last]:
                node.replace_input_with(1, subgraph.constant(graph, "isorun.last", ir.tensor(np.array([-1], np.int64))))


def _canonicalize_split(node: ir.Node, opset: int) -> None:
    value = node.inputs[0]
    assert value is not None
    if node.attributes.get_int("axis", 0) == (subgraph.rank(value) or 0) - 1:
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
    parts = node.inputs[1] if len(node.inputs) > 1 else None
    if parts is not None and is_constant(parts) and len(set(array(parts).tolist())) == 1:
        node.resize_inputs(1)
        if opset >= 18:
            node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))


def _as_cast(graph: ir.Graph, node: ir.Node, dtype: ir.DataType) -> ir.Node:
    """Replace a ``CastLike`` of known type with ``Cast``, which does not depend on the other value."""
    cast = ir.node("Cast", node.inputs[:1], {"to": int(dtype)}, name=node.name)
    ir.convenience.replace_nodes_and_values(graph, node, [node], [cast], node.outputs, cast.outputs)
    return cast


def _split_gemms(graph: ir.Graph) -> None:
    """Replace dense ``Gemm`` nodes with ``MatMul`` and ``Add``."""
    for node in list(graph):
        if node.op_type != "Gemm" or node.domain != "" or node.attributes.get_int("transA", 0) != 0:
            continue
        rows, weight = node.inputs[:2]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        scaled = any(node.attributes.get_float(name, 1.0) != 1 for name in ("alpha", "beta"))
        if rows is None or weight is None or scaled or not is_constant(weight):
            continue
        if bias is not None and not subgraph.is_vector(bias):
            continue
        if node.attributes.get_int("transB", 0):
            weight = subgraph.insert(node, "Transpose", [weight], perm=[1, 0])
        result = subgraph.insert(node, "MatMul", [rows, weight])
        if bias is not None:
            result = subgraph.insert(node, "Add", [result, bias])
        result.type, result.shape = node.outputs[0].type, node.outputs[0].shape
        subgraph.replace(node.outputs[0], result)
        graph.remove(node, safe=True)


def _fold_widths(graph: ir.Graph) -> None:
    """Replace the width of a dense layer's output, read from its shape, by the number."""
    for node in list(graph):
        shape = None if node.op_type != "Gather" or node.inputs[0] is None else node.inputs[0].producer()
        if shape is None or shape.op_type != "Shape" or shape.attributes or shape.inputs[0] is None:
            continue
        index, layer = subgraph.scalar(node.inputs[1]), subgraph.dense(shape.inputs[0])
        if layer is None or index is None or index not in (-1, (subgraph.rank(shape.inputs[0]) or 0) - 1):
            continue
        dimensions = sizes(node.inputs[1])  # type: ignore[arg-type]  # a constant is a value
        width = ir.tensor(np.full(dimensions, sizes(layer.weight)[1], np.int64))
        ir.convenience.replace_all_uses_with(node.outputs[0], subgraph.constant(graph, f"{node.name}.width", width))
        if not node.outputs[0].is_graph_output():
            graph.remove(node, safe=True)


def _fold(model: ir.Model) -> None:
    opset = model.graph.opset_imports.get("", 0)
    for node in list(model.graph):
        if (
            node.domain != ""
            or node.op_type in _NOT_FOLDED
            or not node.inputs
            or any(value.is_graph_output() for value in node.outputs)
            or not all(value is None or is_constant(value) for value in node.inputs)
        ):
            continue
        tensors = _evaluated(node, opset)
        for output, tensor in zip(node.outputs, tensors, strict=False):
            value = subgraph.constant(model.graph, output.name or f"{node.name}.folded", tensor)
            ir.convenience.replace_all_uses_with(output, value)
        if tensors:
            model.graph.remove(node, safe=True)


def _evaluated(node: ir.Node, opset: int) -> list[ir.TensorProtocol]:
    """The outputs of a node whose inputs are constants; empty if they are too large or cannot be evaluated."""
    source, *others = (None if value is None else value.const_value for value in node.inputs)
    rest = [None if tensor is None else tensor.numpy() for tensor in others]
    if source is not None and source.nbytes > _MAX_FOLDED:
        if node.op_type == "Cast":
            return _lazy_cast(source, ir.DataType(node.attributes["to"].as_int()))
        return _moved_constant(node, source, rest, opset) if node.op_type in _MOVING else []
    try:
        results = run_node(node, [None if source is None else source.numpy(), *rest], opset)
    except CannotEvaluate as why:
        _logger.debug("not folded: %s", why)
        return []
    arrays = [np.asarray(result) for result in results]
    return [ir.tensor(array) for array in arrays] if all(array.nbytes <= _MAX_FOLDED for array in arrays) else []


def _lazy_cast(source: ir.TensorProtocol, dtype: ir.DataType) -> list[ir.TensorProtocol]:
    """A large constant in another type, computed whenever it is read."""
    shape = tuple(int(size) for size in source.shape)  # type: ignore[arg-type]  # a tensor's dimensions are numbers
    return [subgraph.lazy(lambda: source.numpy().astype(dtype.numpy()), dtype, shape)]


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


def _unflatten(model: ir.Model, product: ir.Node) -> None:
    """Remove the reshapes around a product (and its bias) that flatten and restore its rows, as tf2onnx writes dense
    layers, and ONNX Runtime with fixed shapes."""
    rows, weight = product.inputs
    flattened = None if rows is None else rows.producer()
    if weight is None or not is_constant(weight) or flattened is None or flattened.op_type != "Reshape":
        return
    user, bias = _only_reader(product), None
    if user is not None and user.op_type == "Add" and subgraph.is_vector(user.inputs[1]):
        bias = user.inputs[1]
        user = _only_reader(user)
    if user is None or user.op_type != "Reshape":
        return
    entry, restored = flattened.inputs[0], user.outputs[0]
    assert entry is not None
    width, columns = sizes(weight)
    probes = Probes(model.graph)
    for length in probes.lengths:
        sample = {**probes.feeds(length), entry: np.zeros((probes.rows, length, width), np.float32)}
        try:
            shape = probes.evaluator(sample)(restored).shape
        except CannotEvaluate as why:
            _logger.debug("not unflattened: %s", why)
            return
        if shape != (probes.rows, length, columns):
            return
    result = subgraph.insert(user, "MatMul", [entry, weight])
    if bias is not None:
        result = subgraph.insert(user, "Add", [result, bias])
    result.type, result.shape = restored.type, restored.shape
    subgraph.replace(restored, result)


def _only_reader(node: ir.Node) -> ir.Node | None:
    """The node that reads a node's first output, as its first input, if it is the only one."""
    value = node.outputs[0]
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and uses[0].idx == 0 and not value.is_graph_output() else None
