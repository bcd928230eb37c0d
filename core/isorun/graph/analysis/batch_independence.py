"""Whether the rows of a batch are computed independently: whether a row's results are the same beside other rows.

A row depends on its neighbours if a node reduces over the batch axis, as dynamic quantization does, whose scale covers
the whole batch. Where shapes are unknown, the batch is taken to be the first axis.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.batch_sizes import BATCHES, BatchSizes
from isorun.graph.analysis.evaluate import reads, subgraphs
from isorun.graph.io.nodes import label
from isorun.graph.ops import functions

_MICROSOFT = "com.microsoft"
# What reads all its input for each element of its result.
_WHOLE = {
    *(("", operator) for operator in ("DynamicQuantizeLinear", "NonZero", "NonMaxSuppression")),
    *((_MICROSOFT, operator) for operator in ("DynamicQuantizeMatMul", "DynamicQuantizeLSTM")),
}
# The indices of the factors.
_PRODUCTS = {
    **{("", operator): (0, 1) for operator in ("MatMul", "MatMulInteger", "Gemm")},
    ("", "QLinearMatMul"): (0, 3),
    **{(_MICROSOFT, operator): (0, 1) for operator in ("FusedMatMul", "FusedGemm", "MatMulIntegerToFloat")},
}
_ALONG_AXIS = {  # and the default
    **{"CumSum": None, "TopK": -1, "LpNormalization": -1, "ArgMax": 0, "ArgMin": 0},
    **{"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1},
}
_FROM_AXIS = {"LayerNormalization": -1, "RMSNormalization": -1}
_FLATTENING = ("Softmax", "LogSoftmax", "Hardmax")  # before opset 13: all axes from the first
_BATCH_FIRST = (
    *("Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "DeformConv", "AveragePool", "MaxPool", "LpPool"),
    *("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "GroupNormalization", "InstanceNormalization", "LRN"),
    *("DepthToSpace", "SpaceToDepth", "Attention"),
)
_MAX_RESHAPED = 1 << 22  # elements
_SHAPED = ("Reshape", "Expand", "Tile", "ConstantOfShape")
_MERGING = ("Reshape", "Flatten")  # may put other axes on that of rows
_BROADCASTING = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Mean", "Sum", "PRelu", "Where", "And", "Or", "Xor"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
    *("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
)
_RECURRENT = ("LSTM", "GRU", "RNN")
# How many inputs operators read the data of that read only the shape or type of others.
_READS = {"Shape": 0, "Size": 0, "CastLike": 1}
_KNOWN_DOMAINS = ("", _MICROSOFT, "com.microsoft.nchwc", "com.ms.internal.nhwc", "ai.onnx.ml")
_MARK = "isorun.rows"  # in a graph's metadata


class Rows(NamedTuple):
    """What is known of the rows of a batch.

    Attributes:
        mixed_by: the first node that mixes them; empty if none does, or if no input has a batch axis.
        without: the outputs that do not have a row for each row of the batch, such as a constant.
    """

    mixed_by: str = ""
    without: tuple[str, ...] = ()


def mark(model: ir.Model, rows: Rows) -> None:
    """Record what is known of independent rows, before a rewrite after which it cannot be recognized: a packed graph
    has the tokens of all rows on one axis."""
    model.graph.metadata_props[_MARK] = json.dumps(rows.without)


def find(model: ir.Model) -> Rows:
    """What is known of the rows of a batch.

    Args:
        model: the model, which is unchanged.
    """
    if (marked := model.graph.metadata_props.get(_MARK)) is not None:
        return Rows(without=tuple(json.loads(marked)))
    sizes = BatchSizes(model)
    if not sizes.batched:
        return Rows()
    without = tuple(value.name or "" for value in model.graph.outputs if not sizes.has_rows(value))
    mixing = _Search(model, sizes).first(model.graph, set(sizes.batched))
    return Rows("" if mixing is None else label(mixing), without)


class _RowAxis(NamedTuple):
    """The only axis of a value whose size depends on the batch, and its shape at the first batch size."""

    axis: int
    shape: tuple[int, ...]


class _Search:
    def __init__(self, model: ir.Model, sizes: BatchSizes) -> None:
        self._sizes = sizes
        self._dependent: set[str | None] = set()
        self._order: dict[str | None, np.ndarray] = {}  # of rows that were merged with others, along their axis
        self._opset = model.graph.opset_imports.get("", 0)

    def first(self, graph: Iterable[ir.Node], dependent: set[str | None]) -> ir.Node | None:
        """The first node that mixes rows.

        Args:
            graph: the nodes.
            dependent: the names of the values that depend on rows; those of the nodes' results are added.
        """
        for node in graph:
            graphs = subgraphs(node)
            captured = {value.name for body in graphs for inner in body for value in reads(inner)}
            data = node.inputs[: _READS.get(node.op_type)] if node.domain == "" else node.inputs
            read = [value for value in data if value is not None and value.name in dependent]
            if not read and dependent.isdisjoint(captured):
                continue
            dependent.update(value.name for value in node.outputs)
            self._dependent = dependent
            order = next((self._order[value.name] for value in read if value.name in self._order), None)
            if order is not None:
                self._order |= {value.name: order for value in node.outputs}
            if graphs and node.op_type != "If":  # what an iteration reads of other rows is unknown
                return node
            for inner in graphs:
                if (mixing := self.first(inner, dependent)) is not None:
                    return mixing
            if read and not graphs and self._mixes(node, read):
                return node
        return None

    def _mixes(self, node: ir.Node, read: list[ir.Value]) -> bool:
        if functions.is_fused(node):
            return False
        key = (node.domain, node.op_type)
        if key in _WHOLE or node.domain not in _KNOWN_DOMAINS:  # of others' operators nothing is known
            return True
        if self._loses_rows(node, read) or self._counts_rows(node) or self._crosses_rows(node, read):
            return True
        if key in _PRODUCTS:
            return self._multiplies_rows(node, *_PRODUCTS[key])
        if node.domain != "":
            return False
        return self._reduces(node, node.inputs[0])

    def _loses_rows(self, node: ir.Node, read: list[ir.Value]) -> bool:
        """Whether a result has no single axis of rows, although an input has one."""
        axes = [self._sizes.axes(value) for value in read]
        if any(not known for known in axes):  # unknown, or lost before
            return False
        for value in node.outputs:
            after = self._sizes.axes(value)
            if after is not None and (len(after) != 1 or not all(after.values())):
                return True
        return False

    def _counts_rows(self, node: ir.Node) -> bool:
        """Whether a number that a node computes with depends on how many rows there are, or is that of the row.
        Integers are sizes and places, unless they are a result."""
        integers = any(value.is_graph_output() for value in node.outputs)
        return node.op_type not in _SHAPED and any(
            self._sizes.counts_rows(value, integers=integers) for value in node.inputs
        )

    def _crosses_rows(self, node: ir.Node, read: list[ir.Value]) -> bool:
        """Whether values meet whose rows are on different axes, or rows are repeated along their axis."""
        at = [self._row_axis(value) for value in read]
        known = [rows for rows in at if rows is not None]
        if len(known) < len(at):
            return False
        ends, counts = {rows.axis - len(rows.shape) for rows in known}, {rows.shape[rows.axis] for rows in known}
        if node.op_type in _BROADCASTING and node.domain == "" and len(ends) > 1:
            return True
        after = self._row_axis(node.outputs[0])
        return (
            after is not None and node.op_type not in _MERGING and counts == {BATCHES[0]} != {after.shape[after.axis]}
        )

    def _moves_rows(self, node: ir.Node) -> bool:
        """Whether a reshape takes the numbers of other rows for those of a row."""
        data, result = node.inputs[0], node.outputs[0]
        before, after = self._row_axis(data), self._row_axis(result)
        if before is None or after is None or math.prod(before.shape) > _MAX_RESHAPED:
            return False
        elements = math.prod(before.shape)
        if not elements or elements != math.prod(after.shape):  # the samples are not of the sizes that it needs
            return True
        ones = (1 for _ in before.shape[before.axis + 1 :])
        rows = np.broadcast_to(self._rows_along(data, before).reshape(-1, *ones), before.shape).reshape(after.shape)
        along = np.moveaxis(rows, after.axis, 0).reshape(after.shape[after.axis], -1)
        self._order[result.name] = along[:, 0]
        return bool((along != along[:, :1]).any()) or (
            len(along) == BATCHES[0] and not np.array_equal(along[:, 0], np.arange(BATCHES[0]))
        )

    def _rows_along(self, value: ir.Value | None, at: _RowAxis) -> np.ndarray:
        """Which row each part of a value along its axis of rows is of."""
        size = at.shape[at.axis]
        order = self._order.get("" if value is None else value.name)
        return order if order is not None and len(order) == size else np.arange(size) // (size // BATCHES[0])

    def _row_axis(self, value: ir.Value | None) -> _RowAxis | None:
        axes, shape = self._sizes.axes(value), self._sizes.shape(value)
        return None if axes is None or len(axes) != 1 or shape is None else _RowAxis(min(axes), shape)

    def _reads_other_rows(self, node: ir.Node, axes: set[int], axis: int) -> bool:
        """Whether the rows that an index selects, along the axis of rows, may be others than each its own."""
        index = self._sizes.array(node.inputs[1])
        if axis not in axes:
            return False
        if index is None:
            return node.op_type == "GatherElements"
        if node.op_type == "GatherND" and index.ndim == 1:  # a single place
            return True
        numbers = index[..., 0] if node.op_type == "GatherND" else np.moveaxis(index, axis, 0)
        own = np.arange(len(numbers)).reshape(-1, *(1 for _ in numbers.shape[1:]))
        return bool((numbers != own).any())

    def _multiplies_rows(self, node: ir.Node, left: int, right: int) -> bool:
        for index, name, contracted in ((left, "transA", 1), (right, "transB", 0)):
            value = node.inputs[index]
            axes, shape = self._sizes.axes(value), self._sizes.shape(value)
            if not axes or shape is None:
                continue
            rank = len(shape)
            turned = bool(node.attributes.get_int(name, 0))
            axis = 0 if rank == 1 else rank - 2 + (contracted != turned)
            if axis in axes:
                return True
        return False

    def _reduces(self, node: ir.Node, data: ir.Value | None) -> bool:
        operator, known = node.op_type, self._sizes.axes(data)
        axes = {0} if known is None else set(known)
        shape = self._sizes.shape(data)
        rank = None if shape is None else len(shape)

        def at(axis: int) -> int:
            return axis if axis >= 0 or rank is None else axis + rank

        if not axes:
            return False
        if operator.startswith("Reduce"):
            axis_numbers = self._integers(node, 1, "axes")
            if axis_numbers is None:
                return not node.attributes.get_int("noop_with_empty_axes", 0)
            return not axes.isdisjoint(map(at, axis_numbers))
        if operator in _FLATTENING and self._opset < 13:
            return max(axes) >= at(node.attributes.get_int("axis", 1)) >= 0
        if operator in _FROM_AXIS:
            return max(axes) >= at(node.attributes.get_int("axis", _FROM_AXIS[operator])) >= 0
        if operator in _ALONG_AXIS:
            axis_numbers = self._integers(node, 1, "axis") if operator == "CumSum" else None
            axis = _ALONG_AXIS[operator]
            along = axis_numbers or ([] if axis is None else [node.attributes.get_int("axis", axis)])
            return not along or not axes.isdisjoint(map(at, along))
        match operator:
            case "BatchNormalization":
                return bool(node.attributes.get_int("training_mode", 0)) or axes != {0}
            case "MeanVarianceNormalization":
                return not axes.isdisjoint(map(at, node.attributes.get_ints("axes", [0, 2, 3])))
            case "Compress" | "Unique":
                axis = node.attributes.get_int("axis", None)
                return axis is None or at(axis) in axes
            case "ReverseSequence":
                return node.attributes.get_int("time_axis", 0) in axes
            case "Einsum":
                return self._contracts(node)
            case "Slice":
                return self._reverses(node, axes, at)
            case "Reshape":
                return self._moves_rows(node)
            case "Trilu" | "EyeLike":
                return rank is None or not axes.isdisjoint((rank - 2, rank - 1))
            case "GatherElements":
                return self._reads_other_rows(node, axes, at(node.attributes.get_int("axis", 0)))
            case "GatherND":
                return not node.attributes.get_int("batch_dims", 0) and self._reads_other_rows(node, axes, 0)
            case "ScatterElements":
                return at(node.attributes.get_int("axis", 0)) in axes
            case "ScatterND":
                return 0 in axes and self._sizes.array(node.inputs[1]) is not None
            case "Gather":
                axis = at(node.attributes.get_int("axis", 0))
                own = shape is not None and axis in axes and shape[axis] == BATCHES[0]
                return axis in axes and self._permutes(node.inputs[1], own=own)
            case "Pad":
                return self._shifts(node, axes)
            case "DFT":
                if self._opset >= 20:
                    chosen = self._sizes.array(node.inputs[2]) if len(node.inputs) > 2 else np.array(-2)
                    return chosen is None or at(int(chosen)) in axes
                return at(node.attributes.get_int("axis", 1)) in axes
        if operator in _RECURRENT:
            return known is not None and axes != {0 if node.attributes.get_int("layout", 0) else 1}
        return operator in _BATCH_FIRST and axes != {0}

    def _contracts(self, node: ir.Node) -> bool:
        terms, _, result = node.attributes["equation"].as_string().replace(" ", "").partition("->")
        if "." in terms or not result:
            return False  # judged by the shape of the result alone
        letters = {
            letters[axis]
            for letters, value in zip(terms.split(","), node.inputs, strict=True)
            for axis in self._sizes.axes(value) or ()
        }
        return not letters <= set(result)

    def _reverses(self, node: ir.Node, axes: set[int], at: Callable[[int], int]) -> bool:
        steps = self._sizes.array(node.inputs[4]) if len(node.inputs) > 4 else None
        along = self._sizes.array(node.inputs[3]) if len(node.inputs) > 3 else None
        if steps is None:
            return False
        positions = range(steps.size) if along is None else map(int, along.reshape(-1))
        return any(step < 0 and at(axis) in axes for step, axis in zip(steps.reshape(-1), positions, strict=True))

    def _shifts(self, node: ir.Node, axes: set[int]) -> bool:
        """Whether rows are added or removed on either side."""
        pads = self._sizes.array(node.inputs[1]) if len(node.inputs) > 1 else None
        if pads is None or len(node.inputs) > 3:
            return False  # judged by the shape of the result alone
        before, after = np.split(pads, 2)
        return any(before[axis] or after[axis] for axis in axes)

    def _permutes(self, index: ir.Value | None, *, own: bool) -> bool:
        """Whether rows are selected in another order than their own, or by data. Where they do not have the axis to
        themselves, data may select from what is merged with them."""
        rows = self._sizes.array(index)
        if rows is None:
            return own and index is not None and index.name in self._dependent
        return rows.ndim == 1 and not np.array_equal(rows, np.arange(rows.size))

    def _integers(self, node: ir.Node, index: int, name: str) -> list[int] | None:
        """Axes, from an input or an attribute; ``None`` if there are none, or if they are unknown."""
        if len(node.inputs) > index and (value := node.inputs[index]) is not None:
            numbers = self._sizes.array(value)
            return [int(number) for number in np.reshape(numbers, -1)] if numbers is not None and numbers.size else None
        attribute = node.attributes.get(name)
        return None if attribute is None else [int(axis) for axis in attribute.as_ints()] or None
