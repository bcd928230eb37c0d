"""Embeddings: the sum of rows from several tables, normalized.

Matched, with operands in any order: ``LayerNormalization`` over the last axis of ``word[ids] + position[positions]``
and, if the model has them, ``+ type[types]``. The tables are identified by their indices: token ids are an input of the
graph (possibly cast); positions vary along the sequence when all ids are equal. Positions may be counted from the ids
or the mask (RoBERTa, MPNet); their computation stays in the graph. Of several tables that inputs index, the longest
after that of the ids is the position table. The first S rows of a table are a position table in order. Rows by where a
token is on a page (LayoutLM), and of further types (ERNIE), are summed in the graph. With a fixed length, a constant
with one row per position replaces the position table. Without token types, or with the same type for every token, the
operator has none, and the row of that type is added to the position table; or, without positions, to the word table. So
is a factor of all embeddings.

Without a normalization after it, the rows of a word table are an ``Embedding``.

Rejected: other terms, tables that are not constants, another axis, a sum that other nodes use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import numbers, tokens
from isorun.graph.analysis.evaluate import CannotEvaluate, ancestors, array, behind, data_inputs, is_constant, sizes
from isorun.graph.fusion.skip_layer_normalization import norm
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Probes
from isorun.graph.matching.report import CannotFuse, FusionReport
from isorun.graph.ops import functions
from isorun.graph.ops import positions as position_ops

KIND = functions.EMBEDDING

_SELECTING = frozenset(
    ("Cast", "Expand", "Gather", "GatherElements", "GatherND", "Reshape", "Slice", "Squeeze", "Tile", "Unsqueeze")
)

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)


@dataclass(frozen=True)
class _Rows:
    """``table[index]``."""

    table: ir.Value
    index: ir.Value


def fuse(model: ir.Model, report: FusionReport) -> None:
    """Fuse the embeddings of a normalized model, in place."""
    probes = Probes(model.graph)
    _fold_factors(model.graph)
    for node in list(model.graph):
        if node.op_type != "LayerNormalization" or node.domain != "" or node.inputs[0] is None:
            continue
        terms = _terms(node.inputs[0])
        if not any(isinstance(term, _Rows) and _is_ids(term) for term in terms):
            continue
        if any(isinstance(term, ir.Value) and subgraph.dense(term) is not None for term in terms):
            continue  # the hidden states of a later layer, whose sums go back to the embeddings
        with report.candidate(KIND, node.name):
            _fuse(model.graph, probes, node, terms)
    for node in list(model.graph) if not report.found[KIND] else ():
        terms = _terms(node.outputs[0]) if node.op_type == "Gather" and node.domain == "" else []
        if len(terms) == 1 and isinstance(terms[0], _Rows) and _is_ids(terms[0]) and sizes(terms[0].table)[0] > 1:
            ids = _as_int64(node, _index(terms[0]))
            _name_length(model.graph, _index(terms[0]))
            subgraph.put(functions.EMBEDDINGS[1], [ids, None, None, terms[0].table], {}, node.outputs[0])
            report.accept(KIND)


def _fold_factors(graph: ir.Graph) -> None:
    """Multiply tables by the factors of their rows."""
    for node in list(graph):
        if node.op_type != "Mul" or node.domain != "" or node.inputs[0] is None:
            continue
        factor, rows = subgraph.scalar(node.inputs[1]), node.inputs[0].producer()
        table = None if rows is None or rows.op_type != "Gather" or rows.domain != "" else rows.inputs[0]
        if factor is None or rows is None or not is_constant(table) or len(sizes(table)) != 2:
            continue
        if not is_constant(node.inputs[1]) or len(sizes(node.inputs[1])) > (subgraph.rank(rows.outputs[0]) or 0):
            continue  # the product has more dimensions
        if rows.attributes.get_int("axis", 0) or subgraph.is_used_outside(rows.outputs[0], {node}):
            continue
        scalar, dtype = array(node.inputs[1]).reshape(()), subgraph.dtype(table)

        def scaled(table: ir.Value = table, scalar: np.ndarray = scalar) -> np.ndarray:
            return np.asarray(array(table) * scalar, array(table).dtype)

        scaled_table = subgraph.constant(graph, f"{table.name}.scaled", subgraph.lazy(scaled, dtype, sizes(table)))
        rows.replace_input_with(0, scaled_table)
        subgraph.replace(node.outputs[0], rows.outputs[0])


def _fuse(graph: ir.Graph, probes: Probes, node: ir.Node, terms: list[_Rows | ir.Value]) -> None:
    gamma, beta, epsilon = norm(node)
    gathers = [term for term in terms if isinstance(term, _Rows)]
    others = [term for term in terms if isinstance(term, ir.Value)]
    fixed = [term for term in others if is_constant(term) and _row(term) is None and _is_per_position(probes, term)]
    tables = {term: table for term in others if (table := _sliced_table(graph, probes, term)) is not None}
    others = [term for term in others if term not in tables]
    if unknown := [term for term in others if term not in fixed and (not is_constant(term) or _row(term) is None)]:
        raise CannotFuse(f"it adds {unknown[0].name!r}, which is not a row of a table")
    words = [term for term in gathers if _is_ids(term)]
    word = max(words, key=lambda term: sizes(term.table)[0])
    rest = [term for term in gathers if term is not word]
    positional = [  # computed from where tokens are on a page, (B, S, 4)
        term for term in rest if any(len(source.shape or ()) == 3 for source in data_inputs(term.index))
    ]
    rest = [term for term in rest if term not in positional]
    positions = [term for term in rest if _varies(probes, term.index)]
    types = [term for term in rest if term not in positions]
    by_position = len(positions) + bool(fixed) + len(tables)
    if by_position > 1:
        raise CannotFuse(
            f"expected at most one position table, got {by_position} among {len(gathers) + len(tables)} tables"
        )
    added = [row for term in others if term not in fixed and (row := _row(term)) is not None]
    added += [array(term.table)[only] for term in types if (only := _only_index(term.index)) is not None]
    types = [term for term in types if _only_index(term.index) is None]
    if len(types) > 1 and not by_position:  # positions that are an input
        positions = [max(types, key=lambda term: sizes(term.table)[0])]
        types = [term for term in types if term not in positions]
    positional += types[1:]
    table = positions[0].table if positions else next(iter(tables.values()), None)
    if fixed:
        parts = [array(term).reshape(-1, *sizes(term)[-2:])[0] for term in fixed]
        table = subgraph.constant(graph, "isorun.positions", ir.tensor(sum(parts[1:], start=parts[0])))
    word_table = word.table
    if added and table is not None:
        table = _with_rows_added(graph, table, added)
    elif added:
        word_table = _with_rows_added(graph, word_table, added)
    _name_length(graph, _index(word))
    ids = _as_int64(node, _index(word))
    position_ids: ir.Value | None = None
    if positions:
        position_ids = _positions(probes, node, positions[0], ids)
    elif table is not None:
        position_ids = position_ops.in_order(subgraph.Before(node), ids)
    type_ids, type_table = (_type_ids(node, types[0], ids), types[0].table) if types else (None, None)
    added_rows = _sum(node, positional)
    inputs = [ids, type_ids, position_ids, word_table, table, type_table, gamma, beta, added_rows]
    while inputs[-1] is None:
        inputs.pop()
    subgraph.put(KIND, inputs, {"epsilon": epsilon}, node.outputs[0])


def _sum(node: ir.Node, terms: list[_Rows]) -> ir.Value | None:
    """The sum of rows, computed before a node; ``None`` if there are none."""
    op, total = subgraph.Before(node), None
    for term in terms:
        rows = op("Gather", term.table, term.index, axis=0)
        total = rows if total is None else op("Add", total, rows)
    if total is not None:
        total.type, total.shape = ir.TensorType(subgraph.dtype(terms[0].table)), ir.Shape([None, None, None])
    return total


def _terms(value: ir.Value) -> list[_Rows | ir.Value]:
    """The terms of a value as a sum."""
    node = value.producer()
    if node is not None and node.domain == "":
        if node.op_type == "Add" and not subgraph.dense(value):
            return [term for operand in node.inputs if operand is not None for term in _terms(operand)]
        if node.op_type == "Gather":
            table, index = node.inputs
            if is_constant(table) and index is not None and not node.attributes.get_int("axis", 0):
                return [_Rows(table, index)]
        if node.op_type == "Unsqueeze" and node.inputs[0] is not None and tokens.axes_of(node) == [0]:
            rows, *others = _terms(node.inputs[0])
            if not others and isinstance(rows, _Rows) and _is_sequence(rows.index):
                return [rows]
    return [value]


def _is_sequence(index: ir.Value) -> bool:
    """Whether an index is (sequence,), the same for every row of a batch."""
    return index.shape is not None and len(index.shape) == 1


def _is_ids(rows: _Rows) -> bool:
    """Whether an index is an input of the graph."""
    index = _index(rows)
    return index.producer() is None and not is_constant(index)


def _index(rows: _Rows) -> ir.Value:
    """An index before casts, and before a clip that keeps out-of-range values out of range."""
    index = rows.index
    while (node := index.producer()) is not None and node.domain == "" and node.inputs[0] is not None:
        if node.op_type == "Clip":
            low, high = (subgraph.scalar(node.inputs[at]) if at < len(node.inputs) else None for at in (1, 2))
            if (low is not None and low >= 0) or (high is not None and high < sizes(rows.table)[0]):
                break
        elif node.op_type not in ("Cast", "Identity") or node.inputs[0].dtype not in _INTEGERS:
            break
        index = node.inputs[0]
    return index


def _varies(probes: Probes, index: ir.Value) -> bool:
    """Whether an index varies along the sequence when all ids are equal and no key is masked."""
    feeds = probes.feeds(probes.lengths[0])
    result = probes.evaluator({value: np.full_like(zeros, 3) for value, zeros in feeds.items()})(index)
    return bool(result.ndim in (1, 2) and (result != result[..., :1]).any())


def _only_index(index: ir.Value) -> int | None:
    """The number that every element of an index equals, such as 0 for any selection from a buffer of zeros."""
    index = behind(index, _SELECTING)
    node = index.producer()
    if node is not None and node.op_type == "ConstantOfShape":
        tensor = node.attributes.get_tensor("value")
        return 0 if tensor is None else int(tensor.numpy()[0])
    if not is_constant(index):
        return None
    distinct = np.unique(array(index))
    return int(distinct[0]) if distinct.size == 1 else None


def _positions(probes: Probes, node: ir.Node, rows: _Rows, ids: ir.Value) -> ir.Value:
    """The index of positions, in the canonical form of fused graphs if it computes the same in rows of any length."""
    index, op = _index(rows), subgraph.Before(node)
    # In a table of numbers by id, or a long list of ids
    looks_up = any(math.prod(sizes(read)) > numbers.FEW for read in filter(is_constant, ancestors(index)))
    inputs, longest = data_inputs(index), _longest(probes, rows.index, sizes(rows.table)[0])
    if not inputs:
        results = [probes.evaluator(probes.feeds(length))(index) for length in (*probes.lengths, longest)]
        if all((result == np.arange(result.shape[-1])).all() for result in results):
            return position_ops.in_order(op, ids)
    elif inputs == {source := tokens.source(ids)} and source.dtype is not None and not looks_up:
        near = {number + step for number in numbers.whole([index]) for step in (-1, 0, 1)}
        known = sorted({0, 1, 2, 3} | {number for number in near if number >= 0})
        shape = (probes.rows, max(probes.lengths[-1], 0 if probes.fixed else 2 * len(known)))
        sample = np.random.default_rng(0).permuted(np.resize(known, shape), axis=1).astype(source.dtype.numpy())
        for padding in _whole_numbers(index):
            sample[:, ::3] = padding
            full = np.full((probes.rows, max(longest - padding - 1, shape[1])), padding + 1, sample.dtype)
            full = sample if probes.fixed else full
            if all(
                np.array_equal(probes.evaluator({source: ids_of})(index), position_ops.counted_array(ids_of, padding))
                for ids_of in (sample, full)
            ):
                return position_ops.counted(op, ids, padding)
    if _may_be_negative(probes, index):  # counted from the end of the table, which fused embeddings do not
        index, declared = _as_int64(node, index), index.shape
        index = op("Where", op("Less", index, 0), op("Add", index, sizes(rows.table)[0]), index)
        index.type, index.shape = ir.TensorType(ir.DataType.INT64), declared
    if _is_sequence(index):
        index = op("Unsqueeze", index, [0])
        index.type, index.shape = ir.TensorType(ir.DataType.INT64), None
    return _as_int64(node, index)


def _may_be_negative(probes: Probes, index: ir.Value) -> bool:
    """Whether an index that is computed is below 0 for any of the masks that are tried."""
    if index.producer() is None:
        return False
    length = probes.lengths[-1]
    masks = {source: probes.masks(length) for source in data_inputs(index) if len(source.shape or ()) == 2}
    samples = {source: mask.astype(source.dtype.numpy()) for source, mask in masks.items() if source.dtype}
    try:
        return bool(probes.evaluator({**probes.feeds(length), **samples})(index).min() < 0)
    except CannotEvaluate:
        return False


def _type_ids(node: ir.Node, rows: _Rows, ids: ir.Value) -> ir.Value:
    """The index of token types, (batch, sequence) even if it is the same in all rows."""
    index = _as_int64(node, _index(rows))
    if data_inputs(rows.index):
        return index
    op = subgraph.Before(node)
    expanded = op("Expand", index, op("Shape", ids))
    expanded.type, expanded.shape = ir.TensorType(ir.DataType.INT64), ids.shape
    return expanded


def _longest(probes: Probes, value: ir.Value, rows: int) -> int:
    """The longest row that a position table of so many rows, and what a value is read from, have places for."""
    if probes.fixed:
        return probes.lengths[-1]
    buffers = (max(sizes(constant), default=0) for constant in filter(is_constant, ancestors(value)))
    return min([rows, *(size for size in buffers if size > probes.lengths[-1])])


def _whole_numbers(value: ir.Value) -> list[int]:
    """The scalar constants in a value's computation that are whole numbers."""
    scalars = {scalar for ancestor in ancestors(value) if (scalar := subgraph.scalar(ancestor)) is not None}
    return sorted(int(scalar) for scalar in scalars if scalar >= 0 and scalar == int(scalar))


def _name_length(graph: ir.Graph, ids: ir.Value) -> None:
    """Name the length of the ids if it has no name: the limit of the position table is attached to the name."""
    if ids.shape is None or len(ids.shape) != 2 or isinstance(ids.shape[1], int) or ids.shape[1].value is not None:
        return
    taken = {str(size) for value in graph.inputs if value.shape is not None for size in value.shape}
    ids.shape = ir.Shape([ids.shape[0], "sequence" if "sequence" not in taken else f"{ids.name}.length"])


def _row(value: ir.Value) -> np.ndarray | None:
    """The row of a constant whose rows are all the same, (width,) or (1,); ``None`` for any other."""
    constant = np.atleast_1d(array(value))
    rows = constant.reshape(-1, constant.shape[-1])
    return rows[0] if len(rows) and (rows == rows[:1]).all() else None


def _is_per_position(probes: Probes, value: ir.Value) -> bool:
    """Whether a constant has a row for each position: with a fixed length, exporters fold the table into one."""
    constant = array(value)
    rows = constant.reshape(-1, *constant.shape[-2:])
    return probes.fixed and rows.shape[1:2] == probes.lengths and bool((rows == rows[:1]).all())


def _sliced_table(graph: ir.Graph, probes: Probes, value: ir.Value) -> ir.Value | None:
    """The table whose first S rows a value is, the same for the whole batch, in rows as long as the table too."""
    if is_constant(value) or data_inputs(value):
        return None

    def is_cut(rows: np.ndarray, length: int) -> bool:
        result = read(length)
        return result is not None and np.array_equal(result, rows[:length])

    @cache
    def read(length: int) -> np.ndarray | None:
        try:
            result = probes.evaluator(probes.feeds(length))(value)
        except CannotEvaluate:  # beyond the table
            return None
        return result.reshape(length, -1) if result.ndim > 1 and result.size == length * result.shape[-1] else None

    for table in ancestors(value):
        if not is_constant(table) or sum(size > 1 for size in sizes(table)) != 2 or len(sizes(table)) > 3:
            continue
        rows = array(table).reshape(-1, sizes(table)[-1])
        if all(is_cut(rows, length) for length in probes.lengths):
            longest = _longest(probes, value, len(rows))
            if not probes.fixed and (not is_cut(rows, longest) or read(longest + 1) is not None):
                return None  # changed in long rows, or repeated
            return table if len(sizes(table)) == 2 else subgraph.constant(graph, "isorun.positions", ir.tensor(rows))
    return None


def _with_rows_added(graph: ir.Graph, table: ir.Value, rows: list[np.ndarray]) -> ir.Value:
    """The table with these rows added to every row."""
    total = sum(rows[1:], start=rows[0])
    tensor = subgraph.lazy(lambda: array(table) + total, subgraph.dtype(table), sizes(table))
    return subgraph.constant(graph, f"{table.name}.raised", tensor)


def _as_int64(node: ir.Node, index: ir.Value) -> ir.Value:
    if index.dtype == ir.DataType.INT32:
        return subgraph.Before(node).cast(index, ir.DataType.INT64)
    return index
