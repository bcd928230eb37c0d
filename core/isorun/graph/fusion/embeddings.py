"""Embeddings: the rows of two or three tables, added up and normalized.

Matched, whichever way round the sums are written: ``LayerNormalization`` over the last axis of
``word[ids] + position[positions]`` and, where the model has them, ``+ type[types]``. Which table is which is
told by its index: token ids are an input of the graph as it is (a cast aside); positions differ along the
sequence where every id is the same. Positions may be counted from the ids or the mask (RoBERTa, MPNet): they
stay whatever the graph computes. The first rows of a table, as many as the sequence is long, are a position table
in order. Where the model has no token types, or always the same one, the fused operator has none, and the one type's
row is added to the position table. Where the length is fixed, a row for each place will do in place of the position
table.

Refused: other terms, tables that are no constants, another axis, a sum that something else uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.evaluate import CannotEvaluate, ancestors, array, data_inputs, is_constant, sizes
from isorun.graph.fusion.skip_layer_normalization import norm
from isorun.graph.matching import subgraph
from isorun.graph.matching.probes import Trials
from isorun.graph.matching.report import FusionReport, Refused
from isorun.graph.ops import functions
from isorun.graph.ops import positions as places

KIND = functions.EMBEDDING

_PICKS = frozenset(
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
    trials = Trials(model.graph)
    for node in list(model.graph):
        if node.op_type != "LayerNormalization" or node.domain != "" or node.inputs[0] is None:
            continue
        terms = _terms(node.inputs[0])
        if len(terms) < 2 or not any(isinstance(term, _Rows) and _is_ids(term) for term in terms):
            continue
        try:
            _fuse(model.graph, trials, node, terms)
        except (Refused, CannotEvaluate) as why:
            report.refuse(KIND, node.name, str(why))
        else:
            report.accept(KIND)


def _fuse(graph: ir.Graph, trials: Trials, node: ir.Node, terms: list[_Rows | ir.Value]) -> None:
    gamma, beta, epsilon = norm(node)
    if beta is None:
        raise Refused("its normalization has no bias")
    gathers = [term for term in terms if isinstance(term, _Rows)]
    others = [term for term in terms if isinstance(term, ir.Value)]
    by_place = [term for term in others if is_constant(term) and _row(term) is None and _by_place(trials, term)]
    tables = {term: table for term in others if (table := _first_rows(graph, trials, term)) is not None}
    others = [term for term in others if term not in tables]
    if strange := [term for term in others if term not in by_place and (not is_constant(term) or _row(term) is None)]:
        raise Refused(f"it adds {strange[0].name!r}, which is no row of a table")
    words = [term for term in gathers if _is_ids(term)]
    word = max(words, key=lambda term: sizes(term.table)[0])
    rest = [term for term in gathers if term is not word]
    positions = [term for term in rest if _varies(trials, term.index)]
    types = [term for term in rest if term not in positions]
    by_position = len(positions) + bool(by_place) + len(tables)
    if by_position != 1 or len(types) > 1:
        raise Refused(f"it adds the rows of {len(gathers) + len(tables)} tables, {by_position} of them by position")
    added = [array(term).reshape(-1) for term in others if term not in by_place]
    if types and (always := _always(types[0].index)) is not None:
        added.append(array(types[0].table)[always])
        types = []
    table = positions[0].table if positions else _placed(graph, by_place) if by_place else next(iter(tables.values()))
    if added:
        table = _raised(graph, table, added)
    _name_length(graph, _index(word))
    ids = _as_int64(node, _index(word))
    if positions:
        at_positions = _positions(trials, node, _index(positions[0]), ids)
    else:
        at_positions = places.in_order(subgraph.Before(node), ids)
    type_ids, type_table = (_as_int64(node, _index(types[0])), types[0].table) if types else (None, None)
    inputs = [ids, type_ids, at_positions, word.table, table, type_table, gamma, beta]
    subgraph.put(KIND, inputs, {"epsilon": epsilon}, node.outputs[0])


def _terms(value: ir.Value) -> list[_Rows | ir.Value]:
    """What a value is the sum of."""
    node = value.producer()
    if node is not None and node.domain == "":
        if node.op_type == "Add" and not subgraph.dense(value):
            return [term for each in node.inputs if each is not None for term in _terms(each)]
        if node.op_type == "Gather":
            table, index = node.inputs
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
            if table is not None and index is not None and is_constant(table) and axis == 0:
                return [_Rows(table, index)]
        if node.op_type == "Unsqueeze" and node.inputs[0] is not None and _before_the_first(node):
            rows, *others = _terms(node.inputs[0])
            if not others and isinstance(rows, _Rows) and _counts_alone(rows.index):
                return [rows]
    return [value]


def _before_the_first(node: ir.Node) -> bool:
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    return axes is not None and is_constant(axes) and array(axes).tolist() == [0]


def _counts_alone(index: ir.Value) -> bool:
    """Whether an index is of the sequence alone, the same for every row of a batch."""
    return index.shape is not None and len(index.shape) == 1


def _is_ids(rows: _Rows) -> bool:
    """Whether an index is an input of the graph as it is."""
    index = _index(rows)
    return index.producer() is None and not is_constant(index)


def _index(rows: _Rows) -> ir.Value:
    """What an index is before casts, and before a clip that leaves what is outside the table outside."""
    index = rows.index
    while (node := index.producer()) is not None and node.domain == "" and node.inputs[0] is not None:
        if node.op_type == "Clip":
            least, most = (subgraph.scalar(node.inputs[at]) if at < len(node.inputs) else None for at in (1, 2))
            if (least is not None and least >= 0) or (most is not None and most < sizes(rows.table)[0]):
                break
        elif node.op_type not in ("Cast", "Identity") or node.inputs[0].dtype not in _INTEGERS:
            break
        index = node.inputs[0]
    return index


def _varies(trials: Trials, index: ir.Value) -> bool:
    """Whether an index differs along the sequence where every id is the same and no key is masked."""
    feeds = trials.feeds(trials.lengths[0])
    seen = trials.evaluator({value: np.full_like(zeros, 3) for value, zeros in feeds.items()})(index)
    return bool(seen.ndim in (1, 2) and (seen != seen[..., :1]).any())


def _always(index: ir.Value) -> int | None:
    """The one number that an index consists of: a buffer of zeros, whatever is picked from it."""
    node = index.producer()
    while node is not None and node.op_type in _PICKS and node.domain == "" and node.inputs[0] is not None:
        index = node.inputs[0]
        node = index.producer()
    if node is not None and node.op_type == "ConstantOfShape":
        return int(node.attributes["value"].as_tensor().numpy()[0]) if "value" in node.attributes else 0
    if not is_constant(index):
        return None
    numbers = np.unique(array(index))
    return int(numbers[0]) if numbers.size == 1 else None


def _positions(trials: Trials, node: ir.Node, index: ir.Value, ids: ir.Value) -> ir.Value:
    """The index of positions; in the one spelling that fused graphs have, where there is one for what it gives."""
    inputs = data_inputs(index)
    if not inputs:
        seen = [trials.evaluator(trials.feeds(length))(index) for length in trials.lengths]
        if all((each == np.arange(each.shape[-1])).all() for each in seen):
            return places.in_order(subgraph.Before(node), ids)
    elif inputs == {source := _source(ids)} and source.dtype is not None:
        shape = (trials.rows, trials.lengths[-1])
        sample = np.random.default_rng(0).integers(0, 4, shape).astype(source.dtype.numpy())
        for padding in _numbers(index):
            sample[:, ::3] = padding
            if np.array_equal(trials.evaluator({source: sample})(index), places.counted_array(sample, padding)):
                return places.counted(subgraph.Before(node), ids, padding)
    if _counts_alone(index):
        index = subgraph.insert(node, "Unsqueeze", [index, subgraph.Before(node).constant("rows", np.array([0]))])
        index.type, index.shape = ir.TensorType(ir.DataType.INT64), None
    return _as_int64(node, index)


def _source(ids: ir.Value) -> ir.Value:
    """The graph's input that ids are cast from."""
    while (node := ids.producer()) is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        ids = node.inputs[0]
    return ids


def _numbers(value: ir.Value) -> list[int]:
    """The whole numbers that a value is computed with."""
    found = {scalar for each in ancestors(value) if (scalar := subgraph.scalar(each)) is not None}
    return sorted(int(number) for number in found if number >= 0 and number == int(number))


def _name_length(graph: ir.Graph, ids: ir.Value) -> None:
    """Give the length of the ids a name where it has none: by that it is held to the table of positions."""
    if ids.shape is None or len(ids.shape) != 2 or isinstance(ids.shape[1], int) or ids.shape[1].value is not None:
        return
    taken = {str(size) for value in graph.inputs if value.shape is not None for size in value.shape}
    ids.shape = ir.Shape([ids.shape[0], "sequence" if "sequence" not in taken else f"{ids.name}.length"])


def _row(value: ir.Value) -> np.ndarray | None:
    """A constant that is one row."""
    constant = array(value)
    return constant.reshape(-1) if constant.size == constant.shape[-1] else None


def _by_place(trials: Trials, value: ir.Value) -> bool:
    """Whether a constant is a row for each place: where an exporter has fixed the length, it folds the table away."""
    constant = array(value)
    rows = constant.reshape(-1, *constant.shape[-2:])
    return trials.fixed and rows.shape[1:2] == trials.lengths and bool((rows == rows[:1]).all())


def _first_rows(graph: ir.Graph, trials: Trials, value: ir.Value) -> ir.Value | None:
    """The table of which a value is the first rows, as many as the sequence is long; the same for the whole batch."""
    if is_constant(value) or data_inputs(value):
        return None
    seen = {length: trials.evaluator(trials.feeds(length))(value) for length in trials.lengths}
    if any(found.ndim < 2 or found.size != length * found.shape[-1] for length, found in seen.items()):
        return None
    for table in ancestors(value):
        if not is_constant(table) or sum(size > 1 for size in sizes(table)) != 2 or len(sizes(table)) > 3:
            continue
        rows = array(table).reshape(-1, sizes(table)[-1])
        if all(np.array_equal(found.reshape(length, -1), rows[:length]) for length, found in seen.items()):
            return table if len(sizes(table)) == 2 else subgraph.constant(graph, "isorun.positions", ir.tensor(rows))
    return None


def _placed(graph: ir.Graph, terms: list[ir.Value]) -> ir.Value:
    """The table of positions that such constants make."""
    rows = [array(term).reshape(-1, *sizes(term)[-2:])[0] for term in terms]
    return subgraph.constant(graph, "isorun.positions", ir.tensor(sum(rows[1:], start=rows[0])))


def _raised(graph: ir.Graph, table: ir.Value, rows: list[np.ndarray]) -> ir.Value:
    """The table with these rows added to each of its own."""
    total = sum(rows[1:], start=rows[0])
    made = subgraph.lazy(lambda: array(table) + total, subgraph.dtype(table), sizes(table))
    return subgraph.constant(graph, f"{table.name}.raised", made)


def _as_int64(node: ir.Node, index: ir.Value) -> ir.Value:
    if index.dtype == ir.DataType.INT32:
        return subgraph.cast(node, index, ir.DataType.INT64)
    return index
