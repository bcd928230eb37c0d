"""Which values of a graph's inputs keep every lookup within its table, and which lookups no such bounds protect.

A lookup's range is followed back to the inputs through operators that reorder elements, with its columns apart where a
node selects some, and through those that compute each of them, by evaluating these on the integers around the table.
Then the ranges of all indices are computed from the inputs' bounds (:mod:`intervals`): a lookup whose index may still
leave its table is not protected.

Lookups in the bodies of ``If``, ``Loop`` and ``Scan`` bound no input, since they may not run.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import tokens
from isorun.graph.analysis.evaluate import CannotEvaluate, Evaluator, ancestors, data_inputs
from isorun.graph.analysis.intervals import (
    EVERYTHING,
    Ranges,
    Span,
    constant_range,
    dtype_of,
    is_integer,
    same_elements,
)
from isorun.graph.io.nodes import needed
from isorun.graph.ops.functions import EMBEDDINGS, TABLES, is_fused

Bounds = dict[str, tuple[int, int]]

_MAX_COLUMNS = 1024
_FAR = 2**30  # farther numbers, which 32 bits may not hold, mean that there is no limit
_MAX_REACH = 2**21  # of integers that are tried
_MAX_AXES = 4  # of constants that an operand is combined with
_MAX_MASKS = 3  # that an operand is combined with
_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less"),
        *("LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "Sub", "Where"),
    )
)
_INDICES = dict.fromkeys(("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"), 1)


class Lookup(NamedTuple):
    """An index into a table.

    Attributes:
        node: reads the table.
        slot: the number of the node's input that is the index.
        span: the valid indices; ``None`` if the table's size is not fixed.
    """

    node: ir.Node
    slot: int
    span: Span | None

    @property
    def value(self) -> ir.Value | None:
        return self.node.inputs[self.slot]


def lookups(graph: ir.Graph) -> list[Lookup]:
    """The lookups of a graph and of its subgraphs.

    ``Gather`` counts negative indices from the end of its table; the fused embeddings reject them.
    """
    lookups = []
    for node in graph.all_nodes():
        if is_fused(node, *EMBEDDINGS):
            for slot, table in (*TABLES.ids, (TABLES.at, TABLES.positions)):
                if table < len(node.inputs) and node.inputs[slot] is not None:
                    rows = rows_of(node.inputs[table])
                    lookups.append(Lookup(node, slot, None if rows is None else (0, rows - 1)))
        elif node.domain == "" and node.op_type in _INDICES:
            slot, rows = _INDICES[node.op_type], None
            if node.op_type in ("Gather", "GatherElements"):
                rows = rows_of(node.inputs[0], node.attributes.get_int("axis", 0))
            lookups.append(Lookup(node, slot, None if rows is None else (-rows, rows - 1)))
    return lookups


def find(graph: ir.Graph) -> Bounds:
    """The minimum and maximum valid value of each integer input that indexes tables of the model."""
    return _Narrowing(graph).bounds()


def unprotected(graph: ir.Graph) -> list[Lookup]:
    """The lookups whose index may leave its table although the inputs are within their bounds."""
    bounds = find(graph)
    ranges = Ranges({value: bounds[value.name] for value in graph.inputs if value.name in bounds})
    rest = []
    for lookup in lookups(graph):
        span = ranges(lookup.value)
        if lookup.span is None and _is_in_every_table(lookup):
            continue
        if is_fused(lookup.node) and lookup.slot == TABLES.at and not _reads_others(lookup):
            continue  # the limit of the row's length
        if lookup.span is None or not (_is_within(span, lookup.span) or _stays_within(graph, lookup, ranges)):
            rest.append(lookup)
    return rest


def _is_within(span: Span, allowed: Span) -> bool:
    return allowed[0] <= span[0] and span[1] <= allowed[1]


def _stays_within(graph: ir.Graph, lookup: Lookup, ranges: Ranges) -> bool:
    """Whether an index that is computed from one value, and masks, is valid for every number that the value may be."""
    index = lookup.value
    while index is not None and (source := same_elements(index)) is not None:
        index = source
    for operand in () if index is None else _operands(index):
        low, high = ranges(operand)
        if index is not None and lookup.span is not None and high - low < _MAX_REACH:
            results = _results(graph, index, operand, ranges, np.arange(low, high + 1))
            if results is not None and _is_within((results.min(), results.max()), lookup.span):
                return True
    return False


def _is_in_every_table(lookup: Lookup) -> bool:
    """Whether an index is a number of the model: the first or the last, which every table has that is not empty, or one
    that selects sizes of a shape."""
    known, table = constant_range(lookup.value), lookup.node.inputs[0]
    shape = None if table is None else table.producer()
    is_of_shape = shape is not None and shape.op_type == "Shape"
    return known is not None and (is_of_shape or (known[0] >= -1 and known[1] <= 0))


def _reads_others(lookup: Lookup) -> bool:
    """Whether positions depend on other data than the ids."""
    ids = lookup.node.inputs[TABLES.ids[0][0]]
    return not data_inputs(needed(lookup.value)) <= ({ids} if ids is None else data_inputs(ids))


class _Narrowing:
    """Follows the ranges of a graph's lookups back to its inputs."""

    def __init__(self, graph: ir.Graph) -> None:
        self._ranges = Ranges()
        self._graph = graph
        self._inputs: dict[ir.Value, Span] = {}
        self._columns: dict[tuple[ir.Value, int, int], dict[int, Span]] = {}  # by value, axis and size
        for lookup in lookups(graph):
            if lookup.value is not None and lookup.span is not None and lookup.node.graph is graph:
                self._follow(lookup.value, lookup.span)
        while self._columns:
            (value, _, size), columns = self._columns.popitem()
            if len(columns) == size:  # what one column allows is allowed in all: boxes of a page
                lows, highs = zip(*columns.values(), strict=True)
                self._follow(value, (min(lows), max(highs)))

    def bounds(self) -> Bounds:
        limits_of = {}
        for value, (low, high) in self._inputs.items():
            limits = np.iinfo(needed(value.dtype).numpy())
            limits_of[value.name or ""] = int(max(low, limits.min)), int(min(high, limits.max))
        return limits_of

    def _follow(self, value: ir.Value, span: Span) -> None:
        """Note that all elements of a value must be in a span."""
        stack: list[tuple[ir.Value, Span | None]] = [(value, span)]
        while stack:
            current, allowed = stack.pop()
            if allowed == EVERYTHING or allowed is None:
                continue
            node = current.producer()
            if node is None:
                if current.is_graph_input() and is_integer(current):
                    before = self._inputs.get(current, EVERYTHING)
                    self._inputs[current] = _both(before, allowed) or before
                continue
            if node.domain != "":
                continue
            stack.extend(
                (operand, self._preimage(operand, current, allowed))
                for operand in _operands(current)
                if operand is not current
            )
            if (source := same_elements(current)) is not None:
                stack.append((source, allowed))
            elif node.op_type == "Concat":
                stack.extend((source, allowed) for source in node.inputs if source is not None)
            elif (selected := _selected(node, current)) is not None:
                key, columns = selected
                known = self._columns.setdefault(key, {})
                for column in columns:
                    known[column] = _both(known.get(column, EVERYTHING), allowed) or EVERYTHING

    def _preimage(self, operand: ir.Value, value: ir.Value, allowed: Span) -> Span | None:
        """The numbers of an operand for which a value may be in a span, and all between; ``None`` if none is.

        Integers are tried: all of them as far as the model's numbers can lead, and a few beyond, where the value grows
        or stays the same.
        """
        reach = _reach(value, allowed)
        if reach > _MAX_REACH or not is_integer(operand):
            return EVERYTHING
        beyond = [2**power for power in range(reach.bit_length(), _FAR.bit_length())]
        tried = np.array([*(-number for number in reversed(beyond)), *range(-reach, reach + 1), *beyond])
        limits = np.iinfo(dtype_of(operand).numpy())  # type: ignore[union-attr]  # of an integer
        tried = tried[(tried >= limits.min) & (tried <= limits.max)]
        results = _results(self._graph, value, operand, self._ranges, tried)
        if results is None:
            return EVERYTHING
        fits = np.flatnonzero(((results >= allowed[0]) & (results <= allowed[1])).any(axis=1))
        if not fits.size:
            return None
        first, last = fits[[0, -1]]
        low = -math.inf if first == 0 else int(tried[first - 1]) + 1
        return low, math.inf if last == len(tried) - 1 else int(tried[last + 1]) - 1


def _both(first: Span, second: Span) -> Span | None:
    """The numbers in both spans."""
    low, high = max(first[0], second[0]), min(first[1], second[1])
    return (low, high) if low <= high else None


def _operands(value: ir.Value) -> list[ir.Value]:
    """The values that a value is computed from element by element; itself if there are none."""
    leaves = (leaf for leaf in ancestors(value, through=_ELEMENTWISE) if not _is_elementwise(leaf.producer()))
    return [leaf for leaf in leaves if constant_range(leaf) is None]


def _is_elementwise(node: ir.Node | None) -> bool:
    return node is not None and node.domain == "" and node.op_type in _ELEMENTWISE


def _reach(value: ir.Value, allowed: Span) -> int:
    """A number beyond which nothing about the numbers of an operand changes what a value is computed by."""
    ends, divisors = {*map(abs, allowed)}, 1.0
    for ancestor in ancestors(value, frozenset(_operands(value))):
        node, span = ancestor.producer(), constant_range(ancestor)
        ends.update(map(abs, span or ()))
        if node is not None and node.op_type == "Div" and (by := constant_range(node.inputs[1])) is not None:
            divisors *= max(1, *map(abs, by))
    return int(min(2 * (1 + sum(end for end in ends if end < _FAR)) * divisors, _FAR))


def _results(
    graph: ir.Graph, value: ir.Value, operand: ir.Value, ranges: Ranges, tried: np.ndarray
) -> np.ndarray | None:
    """What a value is for numbers of an operand, a row for each, with either value of the masks that it is combined
    with; ``None`` if it is combined with anything else."""
    operands = _operands(value)
    types = {read: dtype.numpy() for read in operands if (dtype := dtype_of(read)) is not None}
    masks = [read for read in operands if read is not operand]
    if len(types) < len(operands) or len(masks) > _MAX_MASKS:
        return None
    if not all(_is_within(ranges(mask), (0, 1)) for mask in masks):
        return None
    column, results = tried.astype(types[operand]).reshape(-1, *(1 for _ in range(_MAX_AXES))), []
    for bits in product((0, 1), repeat=len(masks)):
        samples = {mask: np.array(bit, types[mask]) for mask, bit in zip(masks, bits, strict=True)}
        try:
            result = Evaluator(graph.opset_imports.get("", 1), {**samples, operand: column})(value)
        except CannotEvaluate:
            return None
        results.append(result.reshape(len(tried), -1))
    return np.concatenate(results, axis=1)


def rows_of(table: ir.Value | None, axis: int = 0) -> int | None:
    """The size of a table of the model along an axis."""
    if table is None or table.shape is None or (not table.is_initializer() and tokens.constant(table) is None):
        return None
    size = table.shape[axis] if -len(table.shape) <= axis < len(table.shape) else None
    return size if isinstance(size, int) else None


def _selected(node: ir.Node, output: ir.Value) -> tuple[tuple[ir.Value, int, int], range | list[int]] | None:
    """Which columns a node selects: of which value, along which axis, of which size; and their numbers."""
    source = node.inputs[0] if node.inputs else None
    if source is None or source.shape is None:
        return None
    rank, axis, numbers = len(source.shape), node.attributes.get_int("axis", 0), None
    if node.op_type == "Gather":
        numbers = _integers(node.inputs[1])
    elif node.op_type == "Slice" and len(node.inputs) >= 3:
        starts, stops, axes, steps = [_integers(value) for value in [*node.inputs[1:], None, None][:4]]
        if not starts or not stops or len(starts) != 1 or (axes is None and node.inputs[3:4] not in ([], [None])):
            return None
        if (axes and len(axes) != 1) or (len(node.inputs) > 4 and steps != [1]):
            return None
        axis = (axes or [0])[0]
    elif node.op_type != "Split":
        return None
    size = source.shape[axis] if -rank <= axis < rank else None
    if not isinstance(size, int) or not 0 < size <= _MAX_COLUMNS:
        return None
    chosen: range | list[int]
    if node.op_type == "Gather":
        if not numbers or not all(-size <= number < size for number in numbers):
            return None
        chosen = [number % size for number in numbers]
    elif node.op_type == "Slice":
        chosen = range(*slice(needed(starts)[0], needed(stops)[0]).indices(size))
    else:
        sizes, index = tokens.split_sizes(node, size), node.outputs.index(output)
        chosen = range(sum(sizes[:index]), sum(sizes[: index + 1]))
    return (source, axis % rank, size), chosen


def _integers(value: ir.Value | None) -> list[int] | None:
    """The elements of a small constant; ``None`` for any other value."""
    tensor = tokens.constant(value)
    if tensor is None or tensor.size > _MAX_COLUMNS or constant_range(value) is None:
        return None
    return [int(number) for number in tensor.numpy().reshape(-1)]
