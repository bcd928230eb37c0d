"""Whether the rows of a batch are computed independently: whether a row's results are the same beside other rows.

A row depends on its neighbours if a node reduces over the batch axis, as dynamic quantization does, whose scale covers
the whole batch. Where shapes are unknown, the batch is taken to be the first axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis.batch_sizes import BATCHES, BatchSizes
from isorun.graph.ops import functions
from isorun.graph.ops.inline import inlined

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
_SHAPED = ("Reshape", "Expand", "Tile", "ConstantOfShape")
_RECURRENT = ("LSTM", "GRU", "RNN")
# How many inputs operators read the data of that read only the shape or type of others.
_READS = {"Shape": 0, "Size": 0, "CastLike": 1}
_KNOWN_DOMAINS = ("", _MICROSOFT, "com.microsoft.nchwc", "com.ms.internal.nhwc", "ai.onnx.ml")
_MARK, _INDEPENDENT = "isorun.rows", "independent"  # in a graph's metadata


def mark(model: ir.Model) -> None:
    """Record that rows are independent, before a rewrite after which it cannot be recognized: a packed graph has the
    tokens of all rows on one axis."""
    model.graph.metadata_props[_MARK] = _INDEPENDENT


def find(model: ir.Model) -> str:
    """The first node that mixes the rows of a batch; empty if none does, or if no input has a batch axis.

    Args:
        model: the model, which is unchanged.
    """
    if model.graph.metadata_props.get(_MARK) == _INDEPENDENT:
        return ""
    model = inlined(model)
    sizes = BatchSizes(model)
    if not sizes.batched:
        return ""
    node = _Search(model, sizes).first(model.graph, set(sizes.batched))
    if node is None:
        return ""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"{operator} {node.name!r}" if node.name else operator


class _Search:
    def __init__(self, model: ir.Model, sizes: BatchSizes) -> None:
        self._sizes = sizes
        self._opset = model.graph.opset_imports.get("", 0)

    def first(self, graph: Iterable[ir.Node], dependent: set[str | None]) -> ir.Node | None:
        """The first node that mixes rows.

        Args:
            graph: the nodes.
            dependent: the names of the values that depend on rows; those of the nodes' results are added.
        """
        for node in graph:
            graphs = _subgraphs(node)
            captured = {value.name for inner in graphs for node in inner for value in node.inputs if value is not None}
            data = node.inputs[: _READS.get(node.op_type)] if node.domain == "" else node.inputs
            read = [value for value in data if value is not None and value.name in dependent]
            if not read and dependent.isdisjoint(captured):
                continue
            dependent.update(value.name for value in node.outputs)
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
        if self._loses_rows(node, read) or self._counts_rows(node):
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
        """Whether a number that a node computes with depends on how many rows there are, or is that of the row."""
        return node.op_type not in _SHAPED and any(map(self._sizes.counts_rows, node.inputs))

    def _moves_rows(self, node: ir.Node) -> bool:
        """Whether a reshape takes the numbers of other rows for those of a row."""
        before, after = (self._sizes.axes(value) for value in (node.inputs[0], node.outputs[0]))
        shapes = self._sizes.shape(node.inputs[0]), self._sizes.shape(node.outputs[0])
        if not before or not after or None in shapes:
            return False
        ends = [(shape or (), min(axes)) for shape, axes in zip(shapes, (before, after), strict=True)]
        if any(shape[axis] != BATCHES[0] for shape, axis in ends):
            return False  # merged with others, and separated later
        return len({math.prod(shape[:axis]) for shape, axis in ends}) > 1

    def _reads_other_rows(self, node: ir.Node, axes: set[int], axis: int) -> bool:
        """Whether the rows that an index selects, along the axis of rows, may be others than each its own."""
        index = self._sizes.array(node.inputs[1])
        if axis not in axes:
            return False
        if index is None:
            return node.op_type == "GatherElements"
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
                return at(node.attributes.get_int("axis", 0)) in axes and self._permutes(node.inputs[1])
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

    def _reverses(self, node: ir.Node, axes: set[int], at: object) -> bool:
        steps = self._sizes.array(node.inputs[4]) if len(node.inputs) > 4 else None
        along = self._sizes.array(node.inputs[3]) if len(node.inputs) > 3 else None
        if steps is None:
            return False
        positions = range(steps.size) if along is None else map(int, along.reshape(-1))
        assert callable(at)
        return any(step < 0 and at(axis) in axes for step, axis in zip(steps.reshape(-1), positions, strict=True))

    def _permutes(self, index: ir.Value | None) -> bool:
        """Whether rows are selected in another order than their own."""
        rows = self._sizes.array(index)
        return rows is not None and rows.ndim == 1 and not np.array_equal(rows, np.arange(rows.size))

    def _integers(self, node: ir.Node, index: int, name: str) -> list[int] | None:
        """Axes, from an input or an attribute; ``None`` if there are none, or if they are unknown."""
        if len(node.inputs) > index and (value := node.inputs[index]) is not None:
            numbers = self._sizes.array(value)
            return [int(number) for number in np.reshape(numbers, -1)] if numbers is not None and numbers.size else None
        attribute = node.attributes.get(name)
        return None if attribute is None else [int(axis) for axis in attribute.as_ints()] or None


def _subgraphs(node: ir.Node) -> list[ir.Graph]:
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs.extend(attribute.as_graphs())
    return graphs
