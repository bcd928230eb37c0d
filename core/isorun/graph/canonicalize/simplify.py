"""Canonicalization of what exporters write in several ways, before fusion.

Branches that are always taken are inlined. Constant expressions are folded (large ones when
the model is written). Identities, dropouts and casts to the same type are removed. A dense ``Gemm`` becomes ``MatMul``
and ``Add``, and so do a pointwise convolution and an ``Einsum`` with a weight. Common subexpressions are merged. A
decomposed layer normalization, recognized numerically, becomes ``LayerNormalization``.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import UnsupportedModel
from isorun.graph.analysis.evaluate import CannotEvaluate, Samples, ancestors, array, is_constant, sizes
from isorun.graph.canonicalize import (
    branches,
    constants,
    contrib,
    dedup_weights,
    einsum,
    head_biases,
    layer_normalization,
    pointwise,
)
from isorun.graph.io.nodes import needed
from isorun.graph.io.shape_inference import infer_shapes
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import FusionReport
from isorun.graph.ops import functions, opset

_logger = logging.getLogger(__name__)


def simplify(model: ir.Model, report: FusionReport) -> None:
    """Canonicalize a model in place. Its inputs, outputs and results are unchanged."""
    if model.graph.opset_imports.get("", 0) < functions.opset(functions.BODIES):
        with suppress(UnsupportedModel):  # what stays may be gone after fusion
            opset.move(model.graph, functions.opset(functions.BODIES))  # ranks of a Reshape are inferred since 14
    _free_names(model.graph)
    branches.take(model)
    contrib.expand(model, report)
    infer_shapes(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.DeduplicateInitializersPass()(model)
    constants.remove_no_ops(model.graph)
    constants.fold(model)  # weights that are stored in another type
    _canonicalize_operands(model.graph)
    _split_gemms(model.graph)
    pointwise.rewrite(model.graph)
    einsum.rewrite(model.graph)
    _fold_widths(model.graph)
    constants.fold(model)
    constants.remove_no_ops(model.graph)
    common.DeduplicateInitializersPass()(model)
    dedup_weights.deduplicate(model.graph)
    if not any(attribute.type in _TYPES for node in model.graph for attribute in node.attributes.values()):
        common.CommonSubexpressionEliminationPass()(model)
    layer_normalization.fuse(model)
    head_biases.move(model.graph)
    for node in list(model.graph):
        if node.domain == "" and node.op_type == "MatMul":
            _unflatten(model, node)
    common.RemoveUnusedNodesPass()(model)


_TYPES = (ir.AttributeType.TYPE_PROTO, ir.AttributeType.TYPE_PROTOS)
"""Attributes that cannot be compared, as the elimination of common subexpressions does."""


def _free_names(graph: ir.Graph) -> None:
    """Rename values that are called as those that the passes add, unless the passes have added them."""
    if any(map(functions.is_fused, graph)):
        return
    computed = [value for node in graph for value in node.outputs]
    for value in [*computed, *graph.initializers.values()]:
        if (value.name or "").startswith("isorun.") and not (value.is_graph_input() or value.is_graph_output()):
            value.name = f"model.{value.name}"


def _canonicalize_operands(graph: ir.Graph) -> None:
    """Write equivalent forms in one way: a constant is the last operand of a sum or product, the last axis is -1, and
    equal split sizes are implicit."""
    for node in graph:
        if node.domain != "":
            continue
        if node.op_type in ("Add", "Mul") and is_constant(node.inputs[0]) and not is_constant(node.inputs[1]):
            constant, operand = node.inputs
            node.replace_input_with(0, operand)
            node.replace_input_with(1, constant)
        elif node.op_type == "Split":
            _canonicalize_split(node, graph.opset_imports[""])
        elif node.op_type == "Squeeze" and len(node.inputs) == 2 and node.inputs[0] is not None:
            last, axes = (subgraph.rank(node.inputs[0]) or 0) - 1, node.inputs[1]
            if last > 0 and axes is not None and is_constant(axes) and array(axes).tolist() == [last]:
                node.replace_input_with(1, subgraph.constant(graph, "isorun.last", ir.tensor(np.array([-1], np.int64))))


def _canonicalize_split(node: ir.Node, version: int) -> None:
    value = needed(node.inputs[0])
    if node.attributes.get_int("axis", 0) == (subgraph.rank(value) or 0) - 1:
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
    parts = node.inputs[1] if len(node.inputs) > 1 else None
    if parts is not None and is_constant(parts) and len(set(array(parts).tolist())) == 1:
        node.resize_inputs(1)
        if version >= 18:
            node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))


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
        op = subgraph.Before(node)
        if node.attributes.get_int("transB", 0):
            weight = op("Transpose", weight, perm=[1, 0])
        subgraph.replace_node(node, op.dense(rows, weight, bias))


def _fold_widths(graph: ir.Graph) -> None:
    """Replace the width of a dense layer's output, read from its shape, by the number."""
    for node in list(graph):
        shape = None if node.op_type != "Gather" or node.inputs[0] is None else node.inputs[0].producer()
        if shape is None or shape.op_type != "Shape" or shape.inputs[0] is None:
            continue
        if not constants.is_whole_shape(shape):
            continue
        index, layer = subgraph.scalar(node.inputs[1]), subgraph.dense(shape.inputs[0])
        if layer is None or index is None or index not in (-1, (subgraph.rank(shape.inputs[0]) or 0) - 1):
            continue
        width = np.full(sizes(needed(node.inputs[1])), sizes(layer.weight)[1])
        if not node.outputs[0].is_graph_output():
            subgraph.replace_node(node, subgraph.Before(node).integers(width.tolist()))


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
    width, columns = sizes(weight)
    shape = None if entry is None else entry.shape
    if entry is None or shape is None or len(shape) != 3 or (isinstance(shape[2], int) and shape[2] != width):
        return  # heads are joined or split, not rows
    probes = Probes(model.graph)
    for length in probes.lengths:
        feeds, expected = probes.feeds(length), (probes.rows, length, width)
        try:
            if not isinstance(shape[2], int):
                layers = _zeros_of_layers(entry, probes.rows, length)
                if probes.evaluator({**feeds, **layers})(entry).shape != expected:
                    return
            restored_shape = probes.evaluator({**feeds, entry: np.zeros(expected, np.float32)})(restored).shape
        except CannotEvaluate as why:
            _logger.debug("not unflattened: %s", why)
            return
        if restored_shape != (probes.rows, length, columns):
            return
    subgraph.replace(restored, subgraph.Before(user).dense(entry, weight, bias))


def _zeros_of_layers(value: ir.Value, rows: int, length: int) -> Samples:
    """Zeros for what dense layers compute of tokens before a value: its shape is computed from the last of these, and
    no weight is read."""
    layers = [layer for source in ancestors(value) if (layer := subgraph.dense(source)) is not None]
    return {
        layer.output: np.zeros((rows, length, sizes(layer.weight)[1]), np.float32)
        for layer in layers
        if subgraph.rank(layer.output) == 3
    }


def _only_reader(node: ir.Node) -> ir.Node | None:
    """The node that reads a node's first output, as its first input, if it is the only one."""
    value = node.outputs[0]
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and uses[0].idx == 0 and not value.is_graph_output() else None
