"""Shapes of a graph's values at two batch sizes: the axes that grow with the batch.

ONNX's shape inference stops where a shape is computed by operators that it does not evaluate. Those are evaluated here,
and the inference is repeated, until nothing more is found.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from isorun.graph.analysis import tokens
from isorun.graph.analysis.evaluate import CannotEvaluate, is_constant, run_node, sizes
from isorun.graph.io.shape_inference import infer_shapes

BATCHES = (3, 5)
"""The batch sizes. No other dimension is derived from them, and their greatest common divisor is 1."""

_OTHER = 32  # the size of all other symbolic dimensions: a few tokens, or an image of some patches
_MAX_ELEMENTS = 4096  # of a value that is evaluated: shapes, positions and the like
_PASSES = 12

Shape = tuple[int, ...]


class BatchSizes:
    """The shapes of a graph's values at two batch sizes.

    The batch is the symbolic first axis of inputs.

    Args:
        model: the model, which is unchanged.
    """

    def __init__(self, model: ir.Model) -> None:
        self.batched = {value.name for value in model.graph.inputs if _has_batch(model.graph, value)}
        """The names of the inputs with a batch axis."""
        self._shapes: list[dict[str, Shape]] = []
        self._arrays: list[dict[str, np.ndarray]] = []
        for batch in BATCHES if self.batched else ():
            shapes, arrays = infer(model, batch)
            self._shapes.append(shapes)
            self._arrays.append(arrays)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """A value's shape at the first batch size; ``None`` if unknown."""
        if is_constant(value):
            return sizes(value)
        return None if value is None else self._shapes[0].get(value.name or "")

    def axes(self, value: ir.Value | None) -> dict[int, bool] | None:
        """The axes whose size depends on the batch, and whether it is proportional to it; ``None`` if unknown."""
        if is_constant(value):
            return {}
        pair = [shapes.get("" if value is None else value.name or "") for shapes in self._shapes]
        if None in pair or len({len(shape or ()) for shape in pair}) > 1:
            return None
        small, large = BATCHES
        both = zip(*(shape or () for shape in pair), strict=True)
        return {axis: few * large == many * small for axis, (few, many) in enumerate(both) if few != many}

    def array(self, value: ir.Value | None) -> np.ndarray | None:
        """The elements of a small value at the first batch size; ``None`` if unknown, or if they depend on data."""
        if (tensor := tokens.constant(value)) is not None:
            return tensor.numpy()
        return None if value is None else self._arrays[0].get(value.name or "")

    def has_rows(self, output: ir.Value) -> bool:
        """Whether an output has a row for each row of the batch, on its first axis; as declared, if it is unknown."""
        axes, shape = self.axes(output), self.shape(output)
        if axes is not None and shape is not None:
            return axes == {0: True} and shape[0] == BATCHES[0]
        if isinstance(output.type, ir.SequenceType | ir.OptionalType):
            return False
        return output.shape is None or (len(output.shape) > 0 and not isinstance(output.shape[0], int))

    def counts_rows(self, value: ir.Value | None, *, integers: bool = False) -> bool:
        """Whether a small value that follows from shapes has other numbers in a larger batch, or in another row of it.

        Args:
            value: the value.
            integers: whether integers count: most of them are sizes and places.
        """
        pair = [arrays.get("" if value is None else value.name or "") for arrays in self._arrays]
        few, many = pair
        if few is None or many is None:
            return False
        if few.dtype.kind not in ("fbiu" if integers else "fb"):
            return False
        differing = [axis for axis, sizes in enumerate(zip(few.shape, many.shape, strict=False)) if len({*sizes}) > 1]
        if few.ndim != many.ndim or len(differing) > 1:
            return True
        if not differing:
            return not np.array_equal(few, many)
        by_row = [np.moveaxis(array, differing[0], 0) for array in (few, many)]
        count = len(by_row[0]) // BATCHES[0]
        if any(len(array) != count * batch for array, batch in zip(by_row, BATCHES, strict=True)):
            return True
        # What rows are merged with comes after them, or before.
        first, second = (array.reshape(batch, count, -1) for array, batch in zip(by_row, BATCHES, strict=True))
        turned = [array.reshape(count, batch, -1).swapaxes(0, 1) for array, batch in zip(by_row, BATCHES, strict=True)]
        return not any(
            (few == few[:1]).all() and (many == few[:1]).all() for few, many in ((first, second), tuple(turned))
        )


def _has_batch(graph: ir.Graph, value: ir.Value) -> bool:
    if value.name in graph.initializers or isinstance(value.type, ir.SequenceType | ir.OptionalType):
        return False
    if value.shape is None:
        return True
    return bool(len(value.shape)) and not (isinstance(value.shape[0], int) and value.shape[0] >= 0)


def infer(model: ir.Model, batch: int) -> tuple[dict[str, Shape], dict[str, np.ndarray]]:
    """The shapes of a graph's values at a batch size, and the elements of small ones, as far as they are known.

    Args:
        model: the model, which is unchanged.
        batch: the size of the symbolic first axis of inputs.
    """
    functions = list(model.functions.values())  # shared: inference reads them only
    copy = ir.Model(model.graph.clone(), ir_version=model.ir_version, functions=functions)
    for value in copy.graph.inputs:
        if value.shape is not None and value.name not in copy.graph.initializers:
            fixed = [size if isinstance(size, int) and size >= 0 else _OTHER for size in value.shape]
            value.shape = ir.Shape([batch, *fixed[1:]] if _has_batch(copy.graph, value) else fixed)
    for node in copy.graph.all_nodes():
        for value in node.outputs:
            value.shape = None  # declared with symbols, which would be kept
    known: dict[str, np.ndarray] = {}
    for _ in range(_PASSES):
        infer_shapes(copy)
        if not _evaluate(copy, known):
            break
    values = [value for node in copy.graph.all_nodes() for value in node.outputs] + list(copy.graph.inputs)
    return {value.name or "": shape for value in values if (shape := fixed_shape(value)) is not None}, known


def _evaluate(model: ir.Model, known: dict[str, np.ndarray]) -> bool:
    """Replace the nodes whose results follow from shapes by constants; whether there were any."""
    replaced = False
    for node in list(model.graph):
        results = _results(node, model.graph.opset_imports.get("", 0))
        if results is None:
            continue
        for value, result in zip(node.outputs, results, strict=False):
            known[value.name or ""] = result
            name, outputs = value.name, value.is_graph_output()
            constant = ir.node("Constant", [], {"value": ir.tensor(result)})
            node.prepend(constant)
            if outputs:
                continue
            value.name = f"{name}.evaluated"
            constant.outputs[0].name = name
            constant.outputs[0].shape = ir.Shape(result.shape)
            constant.outputs[0].type = ir.TensorType(ir.DataType.from_numpy(result.dtype))
            ir.convenience.replace_all_uses_with(value, constant.outputs[0])
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            model.graph.remove(node, safe=True)
            replaced = True
    return replaced


def _results(node: ir.Node, opset: int) -> tuple[np.ndarray, ...] | None:
    """A node's results, if they are small and follow from shapes."""
    if node.domain != "" or node.op_type == "Constant":
        return None
    if node.op_type in ("Shape", "Size"):
        shape = fixed_shape(node.inputs[0]) if node.inputs[0] is not None else None
        if shape is None:
            return None
        start, end = node.attributes.get_int("start", None), node.attributes.get_int("end", None)
        number = np.int64(np.prod(shape)) if node.op_type == "Size" else shape[start:end]
        return (np.asarray(number, np.int64),)
    tensors = [tokens.constant(value) for value in node.inputs]
    for value, tensor in zip(node.inputs, tensors, strict=True):
        if value is not None and (tensor is None or value.is_graph_input() or tensor.size > _MAX_ELEMENTS):
            return None
    if not tensors:
        return None
    try:
        with np.errstate(all="ignore"):
            results = run_node(node, [None if tensor is None else tensor.numpy() for tensor in tensors], opset)
    except CannotEvaluate:
        return None
    small = all(isinstance(result, np.ndarray) and result.size <= _MAX_ELEMENTS for result in results)
    return results if small else None


def fixed_shape(value: ir.Value) -> Shape | None:
    """A value's shape if all of its sizes are known."""
    return value.shape.numpy() if value.shape is not None and value.shape.is_static() else None
