"""Whether numbers of a graph depend on how long its rows are, other than as shapes of other values.

Rows of different lengths share a batch only if padding on the right changes no result. A graph may be told apart from
that by a length that it computes with: a sum that is divided by the number of positions, places counted from the end.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import mask_input, numbers
from isorun.graph.analysis.evaluate import CannotEvaluate, Evaluator, array, is_constant, reads, subgraphs
from isorun.graph.analysis.intervals import constant_range, dtype_of
from isorun.graph.ops import functions

# The inputs that are shapes of results, or the ends of what is cut from others.
_SHAPES = {"Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Tile": (1,), "Slice": (2,), "Range": (1,)}

_LENGTH = 6  # of the rows of samples, in tokens
_NO_PLACE = 2**31 - 1  # as the end of a slice, the last element


def find(graph: ir.Graph) -> ir.Node | None:
    """The first node that computes with the length of rows; ``None`` if none does."""
    lengths: set[ir.Value] = set()
    for node in graph:
        if node.domain == "" and node.op_type in ("Shape", "Size"):
            if not _is_known(node):
                lengths.update(node.outputs)
            continue
        inner_reads = (value for body in subgraphs(node) for inner in body for value in reads(inner))
        captured = {value for value in inner_reads if not is_constant(value)}
        if _reads_later_places(node):
            return node
        read = {index for index, value in enumerate(node.inputs) if value in lengths}
        if not read and lengths.isdisjoint(captured):
            continue
        if node.domain == "" and read <= {*_SHAPES.get(node.op_type, ())}:
            continue
        if node.domain == "" and node.op_type == "Slice" and read <= {1, 2}:
            starts = _padded_and_not(graph, node.inputs[1])  # counted from the end: all of the row (XLM)
            if starts is not None and [start.tolist() for start in starts] == [[-_LENGTH], [-_LENGTH - 3]]:
                continue
        dtypes = [dtype_of(value) for value in node.outputs]
        is_whole = all(dtype is not None and (dtype.is_integer() or dtype == ir.DataType.BOOL) for dtype in dtypes)
        starts_there = node.op_type == "Range" or (node.op_type == "Slice" and 0 not in read)
        if node.domain == "" and node.op_type in ("Gather", "GatherND") and read == {1} and not is_whole:
            if not _reads_same(graph, node.inputs[1]):
                return node
            continue
        if functions.is_fused(node) or not is_whole or captured or starts_there:
            return node
        if any(value.is_graph_output() for value in node.outputs):
            return node
        lengths.update(node.outputs)
    return None


def added(graph: ir.Graph) -> ir.Node | None:
    """The first node that reads a number of a row which padding behind the row changes, such as the share of real
    tokens or the place of the first padding; ``None`` if none does."""
    from_inputs = {value for value in graph.inputs if value.name not in graph.initializers}
    alike = set(from_inputs)
    for node in graph:
        data = [value for value in node.inputs if value is not None and not is_constant(value)]
        if data and from_inputs.issuperset(data) and not functions.is_fused(node) and not subgraphs(node):
            from_inputs.update(node.outputs)
            read = [value for value in node.outputs if value.is_graph_output()]
        else:
            read = [value for value in data if value in from_inputs]
        for value in read:
            if value not in alike and _changes(graph, node, value):
                return node
            alike.add(value)
    return None


def _changes(graph: ir.Graph, node: ir.Node, value: ir.Value) -> bool:
    """Whether a value that is computed from the inputs alone is another one, at a row's own tokens, once padding is
    added behind it. Whole numbers are shapes and places, judged where they are read, unless they choose a token."""
    dtype = dtype_of(value)
    chooses = node.domain == "" and node.op_type in ("Gather", "GatherND", "GatherElements") and node.inputs[1] is value
    if dtype is None or (dtype.is_integer() and not chooses):
        return False
    if chooses and dtype.is_integer():
        return not _reads_same(graph, value) and not _is_alike(_padded_and_not(graph, value))
    return not _is_alike(_padded_and_not(graph, value))


def _is_alike(results: list[np.ndarray] | None) -> bool:
    """Whether a value is the same for rows and for these rows padded, in as far as both have it; also if unknown."""
    if results is None:
        return True
    short, long = results
    if short.ndim != long.ndim:
        return False
    both = tuple(slice(0, size) for size in short.shape)
    grown = {(few, many) for few, many in zip(short.shape, long.shape, strict=True) if few != many}
    if not grown <= {(_LENGTH, _LENGTH + 3)}:
        return False
    if short.dtype.kind not in "biufc":  # texts
        return np.array_equal(short, long[both])
    return bool(np.allclose(short, long[both], rtol=1e-5, equal_nan=True))


def _reads_later_places(node: ir.Node) -> bool:
    """Whether a node reads, or cuts rows at, a place that a short row does not have."""
    data = node.inputs[0] if node.inputs else None
    if node.domain != "" or node.op_type not in ("Gather", "Slice") or data is None or is_constant(data):
        return False
    dtype, shape = dtype_of(data), data.shape
    if dtype is None or not dtype.is_floating_point() or (shape is not None and len(shape) < 2):
        return False
    if node.op_type == "Gather":
        axes, ends = [node.attributes.get_int("axis", 0)], node.inputs[1]
    else:
        along = node.inputs[3] if len(node.inputs) > 3 else None
        axes = [] if along is None or not is_constant(along) else array(along).reshape(-1).tolist()
        ends = node.inputs[2]
    rank = None if shape is None else len(shape)
    by_place = [axis % rank if rank else axis for axis in axes] == [1]
    if not by_place or (shape is not None and isinstance(shape[1], int)) or not is_constant(ends):
        return False
    last = np.max(array(ends), initial=0) + (node.op_type == "Gather")
    return bool(1 < last < _NO_PLACE)


def _reads_same(graph: ir.Graph, index: ir.Value | None) -> bool:
    """Whether an index is of the same tokens if rows are padded on the right, as the last token's is."""
    results = _padded_and_not(graph, index)
    if results is None:
        return False
    short, long = results
    rows_and_places = [np.stack(np.divmod(short, _LENGTH)), np.stack(np.divmod(long, _LENGTH + 3))]
    return np.array_equal(short, long) or np.array_equal(rows_and_places[0], rows_and_places[1])


def _padded_and_not(graph: ir.Graph, index: ir.Value | None) -> list[np.ndarray] | None:
    """What an index is for rows, and for the same rows padded on the right; ``None`` if it is unknown."""
    if index is None:
        return None
    usual = {1, 2, 3}
    results = _for_ids(graph, index, usual | numbers.compared([index]) - {0})
    return results or _for_ids(graph, index, usual)  # the others may be no ids, and beyond a table


def _for_ids(graph: ir.Graph, index: ir.Value, known: set[int]) -> list[np.ndarray] | None:
    """As :func:`_padded_and_not`, for rows of these ids."""
    mask = mask_input.find(graph)
    random = np.random.default_rng(0)
    attend = np.arange(_LENGTH) < np.array([[_LENGTH], [4], [1], *[[_LENGTH]] * len(known)])
    ids = np.where(attend, random.permuted(np.resize(sorted(known), attend.shape), axis=1), 0)
    results = []
    for length in (_LENGTH, _LENGTH + 3):
        padding = ((0, 0), (0, length - _LENGTH))
        keys = np.pad(attend, padding) ^ mask.marks_padding
        samples = {
            value: (keys if value.name == mask.name else np.pad(ids, padding)).astype(value.dtype.numpy())
            for value in graph.inputs
            if value.dtype is not None and value.shape is not None and len(value.shape) == 2
        }
        hidden = (value for node in graph if functions.is_fused(node) for value in node.outputs)
        samples |= {value: np.zeros((*keys.shape, 1), np.float32) for value in hidden}
        try:
            results.append(Evaluator(graph.opset_imports[""], samples)(index))
        except CannotEvaluate:
            return None
    return results


def _is_known(node: ir.Node) -> bool:
    """Whether a shape is of fixed dimensions, or of the batch alone."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if node.op_type == "Size":
        return False
    begin, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
    if begin == 0 and end == 1:
        return True
    if all(use.op_type == "Gather" and constant_range(use.inputs[1]) == (0, 0) for use in node.outputs[0].consumers()):
        return begin == 0 and not node.outputs[0].is_graph_output()
    return shape is not None and all(isinstance(size, int) for size in shape[begin:end])
