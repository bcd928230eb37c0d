"""Inspection of a model: layers, parameters, operations, and the dialects that it can be lowered to."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import UnsupportedModel
from isorun.graph import pipeline
from isorun.graph.analysis import tokens
from isorun.graph.analysis.layers import Layer, layers, precision
from isorun.graph.io import files, nodes
from isorun.graph.io.shape_inference import infer_shapes
from isorun.graph.model_info import describe
from isorun.graph.ops import functions, lower
from isorun.types import ModelInfo

_ATTENTIONS = (functions.ATTENTION, functions.CORE, functions.PACKED)


@dataclass(frozen=True)
class Inspection:
    """The contents of a model. An encoder is described in its fused form, which sessions run.

    Attributes:
        info: its inputs, outputs, fused operators and so on.
        is_encoder: whether it is fused or can be.
        operators: the number of nodes by operator.
        layers: the layers with weight matrices.
        parameters: the number of elements in its constants, by precision.
        operations_per_token: multiplications and additions of an encoder's dense layers per token, without layers that
            run once per sequence, such as a pooler. ``None`` for any other model.
        operations_per_token_and_key: multiplications and additions of the attention's two products, per token and key
            that it attends to. ``None`` for any other model.
        dialects: for each dialect, why the model cannot be lowered to it; empty if it can.
    """

    info: ModelInfo
    is_encoder: bool
    operators: Mapping[str, int]
    layers: tuple[Layer, ...]
    parameters: Mapping[str, int]
    operations_per_token: int | None
    operations_per_token_and_key: int | None
    dialects: Mapping[str, str]


def inspect(model: str | os.PathLike[str] | ir.Model) -> Inspection:
    """Inspect a model.

    Args:
        model: an ONNX file, or a graph, which is unchanged.

    Raises:
        InvalidModel: the file cannot be read, or is not a valid model.
    """
    with files.reading("The onnx_ir.Model" if isinstance(model, ir.Model) else str(model)):
        return _inspect(model.clone() if isinstance(model, ir.Model) else pipeline.read(Path(model)).model)


def _inspect(model: ir.Model) -> Inspection:
    info, operators = describe(model), dict(Counter(map(nodes.operator, model.graph)).most_common())
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    infer_shapes(model)
    model_layers = layers(model)
    per_token = [layer for layer in model_layers if layer.kind == "dense" and layer.per == "token"]
    known = bool(info.fused) and all(layer.per for layer in model_layers if layer.kind == "dense")
    return Inspection(
        info=info,
        is_encoder=bool(info.fused),
        operators=operators,
        layers=model_layers,
        parameters=_parameters(model),
        operations_per_token=sum(layer.operations for layer in per_token) if known else None,
        operations_per_token_and_key=_attention(model) if known else None,
        dialects=_dialects(model, is_encoder=bool(info.fused)),
    )


def _parameters(model: ir.Model) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            counts[precision(value.const_value.dtype)] += value.const_value.size
    return dict(counts.most_common())


def _width(node: ir.Node) -> int | None:
    """The width of the hidden states that an attention reads."""
    if node.op_type == functions.PACKED:  # one product computes queries, keys and values
        add = None if node.inputs[0] is None else node.inputs[0].producer()
        bias = None if add is None else tokens.constant(add.inputs[1])
        return None if bias is None else bias.size // 3
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    width = None if shape is None else shape[-1]
    return width if isinstance(width, int) else None


def _attention(model: ir.Model) -> int | None:
    """Two multiplications and two additions per element: query times key, and probability times value."""
    total = 0
    for node in model.graph:
        if not functions.is_fused(node) or node.op_type not in _ATTENTIONS:
            continue
        width = _width(node)
        if width is None:
            return None
        total += 4 * width
    return total


def _dialects(model: ir.Model, *, is_encoder: bool) -> dict[str, str]:
    if not is_encoder:
        return dict.fromkeys(functions.dialects(), "not an encoder that isorun fuses: every backend gets it unchanged")
    reasons = {}
    for dialect in functions.dialects():
        try:
            lower.lower(model.clone(), dialect)
            reasons[dialect] = ""
        except UnsupportedModel as error:
            reasons[dialect] = str(error)
    return reasons
