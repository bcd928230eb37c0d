"""From any exporter's graph to the fused form."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.passes import common

from isorun.errors import UnsupportedModel
from isorun.graph.canonicalize import batch_first, opset_upgrade
from isorun.graph.canonicalize.normalize import normalize
from isorun.graph.fusion import bias_gelu, embeddings, self_attention, skip_layer_normalization
from isorun.graph.io import files, maps
from isorun.graph.matching.report import FusionReport
from isorun.graph.ops import functions, opset
from isorun.graph.transforms import last_layer
from isorun.graph.transforms import select_outputs as outputs

_logger = logging.getLogger(__name__)

OPSETS = range(opset_upgrade.FIRST_UPGRADED, 26)
"""The versions of ONNX's operators that are read; a graph in another stays as it is."""


def fuse(model: ir.Model) -> FusionReport:
    """Bring an encoder to the fused form, in place.

    Inputs and outputs keep their names, types and shapes. Weights are not copied, and of large ones a few elements
    are read; those that are made of others (Q, K and V side by side) are made whenever they are read.

    Args:
        model: any model, with its weights in memory or on disk. One without an attention is returned normalized
            but otherwise as it came; prefer the original then (``report.is_encoder``).

    Returns:
        What was found, what was fused, and why the rest was not.
    """
    report = FusionReport()
    current = model.graph.opset_imports.get("", 0)
    if current not in OPSETS:
        report.unread = f"it is in opset {current} of ONNX's operators, and {OPSETS[0]} to {OPSETS[-1]} are read"
        return report
    if maps.among(model.graph):
        report.unread = "some of its values are maps, which no encoder has"
        return report
    try:
        opset_upgrade.upgrade(model)
    except UnsupportedModel as why:
        report.unread = str(why)
        return report
    declared = [value.shape for value in model.graph.outputs]
    normalize(model, report)
    batch_first.rewrite(model)
    self_attention.fuse(model, report)
    embeddings.fuse(model, report)
    bias_gelu.fuse(model, report)
    skip_layer_normalization.fuse(model, report)
    common.RemoveUnusedNodesPass()(model)
    try:
        opset.move(model.graph, functions.opset(functions.BODIES))
    except UnsupportedModel as why:  # it runs as it is; a dialect in another opset will say the same
        _logger.info("%s", why)
    functions.carry(model)
    last_layer.narrow(model)
    for value, shape in zip(model.graph.outputs, declared, strict=True):
        value.shape = shape  # inference may know more by now, and callers were promised this
    return report


def read(path: Path, wanted: Sequence[str] | None = None) -> tuple[ir.Model, bool]:
    """A model in the fused form, where it is an encoder, else as it came; and whether it was brought to it here.

    Args:
        path: its file.
        wanted: the outputs to compute; ``None`` for all.

    Raises:
        InvalidModel: the file cannot be read, or holds no valid model.
        InvalidFeeds: it has no output of such a name.
    """
    with files.reading(str(path)):
        model = as_it_came(path, wanted)
        if any(functions.is_fused(node) for node in model.graph):
            last_layer.narrow(model)
            return model, False
        if fuse(model).is_encoder:
            return model, True
        return as_it_came(path, wanted), False


def as_it_came(path: Path, wanted: Sequence[str] | None) -> ir.Model:
    """A model as its file has it, but for outputs that are not wanted. Arguments and errors as of :func:`read`."""
    model = files.read(path)
    if wanted is not None:
        outputs.keep(model, wanted)
    return model
