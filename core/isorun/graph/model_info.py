"""The :class:`isorun.types.ModelInfo` of a graph."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import (
    batch_independence,
    index_bounds,
    mask_input,
    output_shapes,
    random_numbers,
    row_lengths,
)
from isorun.graph.analysis.evaluate import CannotEvaluate, Evaluator, data_inputs, is_constant, sizes
from isorun.graph.analysis.layers import QUANTIZING
from isorun.graph.canonicalize.opset_upgrade import feedable_inputs
from isorun.graph.io import maps
from isorun.graph.io.nodes import needed
from isorun.graph.matching.probes import Probes
from isorun.graph.ops.functions import ATTENTION, CORE, EMBEDDINGS, PACKED, TABLES, inputs, is_fused
from isorun.graph.transforms import padding_removal
from isorun.types import ModelInfo, ModelMetadata, TensorSpec

_SAMPLE = 4
_TOKEN_IDS = np.array([[1], [2], [3]], np.int64)

_READS = (("", "Gather"), ("", "Slice"), ("com.microsoft", "GatherBlockQuantized"))

_logger = logging.getLogger(__name__)


def describe(model: ir.Model, *, any_mask: bool = False) -> ModelInfo:
    """Describe a model for a session.

    Args:
        model: the model.
        any_mask: its masks may have other values than 0 and 1.
    """
    graph = model.graph
    mask, marks_padding, token_outputs = mask_input.find(graph)
    padding = padding_removal.examine(model)
    if token_outputs is not None:  # what is zero at padding in the packed graph has to be so in the other
        known = {*token_outputs, *padding.zeroed}
        token_outputs = tuple(value.name for value in graph.outputs if value.name in known)
    masks = () if any_mask else tuple(mask_input.mask_inputs(graph))
    bounds = index_bounds.find(graph) | dict.fromkeys(masks, (0, 1))
    feedable = feedable_inputs(model)
    described = [
        _spec(value, overridable=value.name in graph.initializers, bounds=bounds.get(value.name or ""))
        for value in feedable
    ]
    sizes = next((spec.shape for spec in described if spec.name == mask), None) or ()
    outputs = [
        _of_tokens(spec, sizes) if spec.name in (token_outputs or ()) else spec for spec in map(_spec, graph.outputs)
    ]
    rows, sees = batch_independence.find(model), row_lengths.added(graph)
    fused = dict(Counter(node.op_type for node in graph if is_fused(node)))
    windowed = (node for node in graph if is_fused(node) and "window" in node.attributes)
    return ModelInfo(
        inputs=tuple(described),
        outputs=tuple(outputs),
        opset=graph.opset_imports.get("", 0),
        fused=fused,
        limits=_limits(graph, mask),
        metadata=_metadata(model),
        quantized=any(node.op_type in QUANTIZING for node in graph.all_nodes()),
        mask=mask,
        marks_padding=marks_padding,
        token_outputs=token_outputs,
        keeps_padding=padding.refusal,
        read=padding.read,
        sums=padding.sums,
        sees_padding="" if sees is None else f"{sees.op_type} {sees.name or sees.outputs[0].name!r}",
        mixes_rows=rows.mixed_by,
        without_rows=rows.without,
        unconfirmed=() if fused else output_shapes.unconfirmed(model),
        random=random_numbers.find(model),
        window=min((node.attributes["window"].as_int() for node in windowed), default=None),
        unread=tuple(value.name or "" for value in feedable if not value.uses() and not value.is_graph_output()),
        masks=masks,
    )


def _metadata(model: ir.Model) -> ModelMetadata:
    stated = ModelMetadata(
        producer_name=model.producer_name or "",
        graph_name=model.graph.name or "",
        domain=model.domain or "",
        description=model.doc_string or "",
        graph_description=model.graph.doc_string or "",
        custom_metadata_map=dict(model.metadata_props),
    )
    return stated if model.model_version is None else stated._replace(version=model.model_version)


def _spec(value: ir.Value, *, overridable: bool = False, bounds: tuple[int, int] | None = None) -> TensorSpec:
    shape: tuple[int | str | None, ...] | None = None
    held = value.type.elem_type if isinstance(value.type, ir.OptionalType) else value.type
    if value.shape is not None and not isinstance(held, ir.SequenceType):
        sizes = (size if isinstance(size, int) else size.value or None for size in value.shape)
        # Some exporters write -1 for a symbolic size.
        shape = tuple(None if isinstance(size, int) and size < 0 else size for size in sizes)
    kind = maps.type_of(value) or (None if value.type is None else ir.serde.serialize_type(value.type))
    return TensorSpec(value.name or "", "unknown" if kind is None else maps.spell(kind), shape, overridable, bounds)


def _of_tokens(spec: TensorSpec, sizes: tuple[int | str | None, ...]) -> TensorSpec:
    """An output with values for each token, with the batch and length of the mask: exporters may write an example's."""
    if spec.shape is None or len(sizes) != 2 or len(spec.shape) < 2:
        return spec
    both = zip(spec.shape[:2], sizes, strict=True)
    shape = [size if isinstance(stated, int) and isinstance(size, str) else stated for stated, size in both]
    return replace(spec, shape=(*shape, *spec.shape[2:]))


def _limits(graph: ir.Graph, mask: str | None) -> dict[str, int | None]:
    """The named dimensions of an encoder's ids, with the maximum length of its position table: of one that is fused, or
    has a mask."""
    limits: dict[str, int | None] = {}
    for node in graph:
        if is_fused(node, *EMBEDDINGS):
            ids = node.inputs[0]
            if ids is None or ids.shape is None or len(ids.shape) != 2:
                continue
            batch, length = ids.shape
            if isinstance(batch, ir.SymbolicDim) and batch.value:
                limits[batch.value] = None
            if isinstance(length, ir.SymbolicDim) and length.value:
                limits[length.value] = _max_length(graph, node)
    shapes = [value.shape for value in graph.inputs if value.shape is not None and len(value.shape) == 2]
    lengths = {shape[1].value for shape in shapes if isinstance(shape[1], ir.SymbolicDim) and shape[1].value}
    if (mask or any(map(is_fused, graph))) and len(lengths) == 1 and limits.get(name := str(lengths.pop())) is None:
        limits |= {} if (longest := _longest_read(graph)) is None else {name: longest}
    return limits


def _longest_read(graph: ir.Graph) -> int | None:
    """The rows of the shortest constant of which as many are read as rows are long: one that is sliced, such as
    MobileBERT's positions, looked up in order, such as Marian's, or a table of rotations; ``None`` if there is none."""
    probes = Probes(graph)
    turns = (inputs(node).get("cos") for node in graph if is_fused(node, ATTENTION, CORE, PACKED))
    rows = [sizes(cos)[0] for cos in turns if cos is not None and is_constant(cos)]
    embeddings = [node for node in graph if is_fused(node, *EMBEDDINGS)]

    def embedded(length: int) -> dict[ir.Value, np.ndarray]:
        """What embeddings return, whose sizes are read."""
        tables = {node.outputs[0]: node.inputs[TABLES.ids[0][1]] for node in embeddings}
        return {
            value: np.zeros((probes.rows, length, sizes(words)[1]), np.float32)
            for value, words in tables.items()
            if words is not None
        }

    for node in graph if not probes.fixed else ():
        table = node.inputs[0] if node.inputs else None
        if (node.domain, node.op_type) not in _READS or not is_constant(table):
            continue
        value = needed(node.outputs[0] if node.op_type == "Slice" else node.inputs[1])
        if data_inputs(value) or any(node.attributes.get_int(name, 0) != 0 for name in ("axis", "gather_axis")):
            continue

        def at(length: int, value: ir.Value = value) -> np.ndarray:
            return probes.evaluator({**probes.feeds(length), **embedded(length)})(value)

        try:
            read = [at(length) for length in probes.lengths]
        except CannotEvaluate as why:
            _logger.info("the rows of %r that are read are unknown: %s", table.name, why)
            continue
        if node.op_type == "Slice":
            shapes = zip(*(part.shape for part in read), sizes(table), strict=True)
            rows += [rows for *lengths, rows in shapes if tuple(lengths) == probes.lengths]
        elif all(
            part.size == length and part.max() == length - 1 for part, length in zip(read, probes.lengths, strict=True)
        ):
            rows += [longest] if _ends(at, longest := sizes(table)[0]) else []
    return min(rows, default=None)


def _ends(read: Callable[[int], np.ndarray], rows: int) -> bool:
    """Whether rows end with a table that is read by place: longer ones read beyond it, or cannot be evaluated."""
    try:
        longer = read(rows + 1)
    except CannotEvaluate:
        return True
    return longer.size != rows + 1 or bool(longer.max() >= rows)


def _max_length(graph: ir.Graph, embedding: ir.Node) -> int | None:
    """The maximum number of tokens of an embedding; ``None`` if the positions are an input."""
    if len(embedding.inputs) <= TABLES.positions:  # no position table
        return None
    rows, positions = index_bounds.rows_of(embedding.inputs[TABLES.positions]), embedding.inputs[TABLES.at]
    if rows is None or positions is None or positions.is_graph_input():
        return None
    # Models that count the ids other than padding begin after the padding id. At most one of the rows is padding.
    feed = np.repeat(_TOKEN_IDS, _SAMPLE, 1)
    masks = mask_input.mask_inputs(graph)
    samples = {
        value: np.where(value.name in masks, 1, feed).astype(value.dtype.numpy())
        for value in graph.inputs
        if value.dtype
    }
    try:
        places = np.atleast_2d(Evaluator(graph.opset_imports[""], samples)(positions))
    except CannotEvaluate as why:
        _logger.info("the first position is unknown: %s", why)
        return rows
    counting = places[np.ptp(places, axis=-1) == _SAMPLE - 1]  # a row of padding may be at one place, such as the last
    first = int((counting if counting.size else places).max()) - (_SAMPLE - 1)
    return rows - max(first, 0)
