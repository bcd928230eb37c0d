"""Checks of indices in the graph, for runtimes that do not check them.

A lookup that the bounds of the inputs do not protect reads index 0 instead of one outside its table, and an output
counts those that it replaced. A session raises an error if there are any.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from isorun.errors import UnsupportedModel
from isorun.graph.analysis.index_bounds import Lookup
from isorun.graph.analysis.intervals import dtype_of
from isorun.types import INDEX_ERRORS

_FIRST_OPSET = 10  # an older Slice has no inputs, an older Less no integers


def add(model: ir.Model, lookups: Sequence[Lookup]) -> list[str]:
    """Check lookups, in place.

    Returns:
        What each element of the output :data:`isorun.types.INDEX_ERRORS` counts.

    Raises:
        UnsupportedModel: a lookup cannot be checked.
    """
    if not lookups:
        return []
    if model.graph.opset_imports[""] < _FIRST_OPSET:
        raise UnsupportedModel(
            f"{describe(lookups[0])} may leave its table, which this backend does not check, and isorun can add the "
            f"check from opset {_FIRST_OPSET} on, got {model.graph.opset_imports['']}. Choose another backend"
        )
    counts = []
    for number, lookup in enumerate(lookups):
        if lookup.node.graph is not model.graph or lookup.value is None:
            raise UnsupportedModel(
                f"{describe(lookup)} may leave its table, which this backend does not check, and isorun cannot add "
                "the check to the lowered graph. Choose another backend"
            )
        counts.append(_Check(model.graph, lookup, f"{INDEX_ERRORS}.{number}").count())
    total = ir.node("Concat", counts, attributes={"axis": 0}, name=INDEX_ERRORS)
    total.outputs[0].name = INDEX_ERRORS
    total.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    total.outputs[0].shape = ir.Shape([len(counts)])
    model.graph.append(total)
    model.graph.outputs.append(total.outputs[0])
    return [describe(lookup) for lookup in lookups]


def describe(lookup: Lookup) -> str:
    """A lookup, for messages."""
    valid = "" if lookup.span is None else f" of {lookup.span[0]} to {lookup.span[1]}"
    return f"The index{valid} that {lookup.node.op_type} {lookup.node.name!r} reads"


class _Check:
    """The nodes of one check.

    Args:
        graph: where they are inserted.
        lookup: what they check.
        prefix: of their names.
    """

    def __init__(self, graph: ir.Graph, lookup: Lookup, prefix: str) -> None:
        self._graph, self._lookup, self._prefix = graph, lookup, prefix
        self._nodes = 0

    def count(self) -> ir.Value:
        """Replace invalid indices with 0, and count them: (1)."""
        index = self._lookup.value
        assert index is not None
        dtype = dtype_of(index)
        wide = index if dtype == ir.DataType.INT64 else self._node("Cast", [index], to=ir.DataType.INT64.value)
        if self._lookup.span is None:
            size = self._size(index)
            first = self._node("Neg", [size])
        else:  # every node costs a microsecond or two
            first, size = self._constant(int(self._lookup.span[0])), self._constant(int(self._lookup.span[1]) + 1)
        below = self._node("Less", [wide, first])
        above = self._node("Not", [self._node("Less", [wide, size])])
        invalid = self._node("Or", [below, above])
        # Without a declared type, a constant could not be of the index's
        zero = self._node("Sub", [index, index]) if dtype is None else self._constant(0, dtype)
        self._lookup.node.replace_input_with(self._lookup.slot, self._node("Where", [invalid, zero, index]))
        ones = self._node("Cast", [invalid], to=ir.DataType.INT64.value)
        return self._node("ReduceSum", [self._node("Reshape", [ones, self._constant([-1])])], keepdims=1)

    def _size(self, index: ir.Value) -> ir.Value:
        """The number of valid indices from 0: a scalar, or one for each element of an index of several dimensions."""
        node = self._lookup.node
        shape = self._node("Shape", [node.inputs[0]])
        if not node.op_type.endswith("ND"):
            return self._node("Gather", [shape, self._constant(node.attributes.get_int("axis", 0))])
        first = node.attributes.get_int("batch_dims", 0)
        begin = self._constant([first])
        depth = self._node("Gather", [self._node("Shape", [index]), self._constant([-1])])
        return self._node("Slice", [shape, begin, self._node("Add", [depth, begin])])

    def _constant(self, number: int | list[int], dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        return self._insert(ir.node("Constant", [], attributes={"value": ir.tensor(np.array(number, dtype.numpy()))}))

    def _node(self, kind: str, inputs: Sequence[ir.Value | None], **attributes: int) -> ir.Value:
        return self._insert(ir.node(kind, inputs, attributes=attributes))

    def _insert(self, node: ir.Node) -> ir.Value:
        node.name = node.outputs[0].name = f"{self._prefix}.{self._nodes}"
        self._nodes += 1
        self._graph.insert_before(self._lookup.node, node)
        return node.outputs[0]
