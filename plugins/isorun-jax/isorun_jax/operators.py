"""ONNX operators in JAX: those of isorun's dialect ``static``, and others that small models have.

A function gets ``xp``, the inputs (``None`` for one that is absent) and the attributes. ``xp`` is NumPy if all inputs
are constants, so that what is computed from sizes stays a constant, and ``jax.numpy`` otherwise.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Function = Callable[[Any, list[Any], Mapping[str, Any]], Any]
Graph = Any  # an onnx.GraphProto


def run(graph: Graph, opset: int, values: dict[str, Any], xp: Any) -> list[Any]:
    """The outputs of a graph.

    Args:
        graph: the graph.
        opset: of ONNX's operators.
        values: its inputs and initializers by name; results are added.
        xp: ``jax.numpy``.
    """
    for node in graph.node:
        inputs = [values[name] if name else None for name in node.input]
        constant = all(value is None or isinstance(value, np.ndarray) for value in inputs)
        function = _EARLY[node.op_type][1] if _is_early(node, opset) else OPERATORS[node.op_type]
        results = function(np if constant else xp, inputs, attributes(node))
        results = results if isinstance(results, tuple) else (results,)
        values.update(zip(node.output, results, strict=False))
    return [values[output.name] for output in graph.output]


def unknown(graph: Graph, opset: int) -> Iterator[str]:
    """The operators of a graph that are not here, also in an early opset, and attributes that they do not support."""
    from onnx import TensorProto

    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            yield f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        elif _is_early(node, opset) and _EARLY[node.op_type][1] is None:
            yield f"{node.op_type} before opset {_EARLY[node.op_type][0]}"
        elif node.op_type == "Cast" and attributes(node)["to"] not in _TYPES:
            yield f"Cast to {TensorProto.DataType.Name(attributes(node)['to'])}"
        elif any(node.output[_RESULTS.get(node.op_type, 1) :]):
            yield f"{node.op_type} with {len(node.output)} outputs"
        elif unsupported := _effective(node) - _ATTRIBUTES.get(node.op_type, set()):
            yield f"{node.op_type} with {', '.join(sorted(unsupported))}"


def attributes(node: Any) -> dict[str, Any]:
    """The attributes of a node."""
    from onnx.helper import get_attribute_value

    known = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
    return {OUTPUTS: len(node.output), **known} if node.op_type == "Split" else known


def _effective(node: Any) -> set[str]:
    """The attributes of a node without those that only state what is computed anyway, as PyTorch's exporters write."""
    return {name for name, value in attributes(node).items() if _STATED.get(name) != value}


def _is_early(node: Any, opset: int) -> bool:
    """Whether an operator meant something else in an opset."""
    return node.op_type in _EARLY and opset < _EARLY[node.op_type][0]


def _unary(name: str) -> Function:
    return lambda xp, inputs, _: getattr(xp, name)(inputs[0])


def _binary(name: str) -> Function:
    return lambda xp, inputs, _: getattr(xp, name)(inputs[0], inputs[1])


def _folded(name: str) -> Function:
    def fold(xp: Any, inputs: list[Any], _: Mapping[str, Any]) -> Any:
        result = inputs[0]
        for value in inputs[1:]:
            result = getattr(xp, name)(result, value)
        return result

    return fold


def _erf(_: Any, inputs: list[Any], __: Mapping[str, Any]) -> Any:
    import jax

    return jax.scipy.special.erf(inputs[0])


def _reduction(name: str) -> Function:
    def reduce(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
        axes = attrs.get("axes", ()) if len(inputs) < 2 or inputs[1] is None else inputs[1].tolist()
        if not len(axes) and attrs.get("noop_with_empty_axes"):
            return inputs[0]
        keep = bool(attrs.get("keepdims", 1))
        along = tuple(axes) if len(axes) else None
        return getattr(xp, name)(inputs[0], axis=along, keepdims=keep).astype(inputs[0].dtype)

    return reduce


def _best(name: str) -> Function:
    def best(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
        index = getattr(xp, name)(inputs[0], axis=attrs.get("axis", 0), keepdims=bool(attrs.get("keepdims", 1)))
        return index.astype(np.int64)

    return best


def _cast(_: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    from onnx.helper import tensor_dtype_to_np_dtype

    return inputs[0].astype(tensor_dtype_to_np_dtype(attrs["to"]))


def _constant(_: Any, __: list[Any], attrs: Mapping[str, Any]) -> np.ndarray:
    from onnx.numpy_helper import to_array

    ((name, value),) = attrs.items()
    if name == "value":
        return to_array(value)
    return np.asarray(value, np.int64 if "int" in name else np.float32)


def _divide(xp: Any, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    left, right = inputs
    if left.dtype.kind not in "iu":
        return left / right
    return (left - xp.fmod(left, right)) // right  # towards zero; the smallest number has no absolute value


def _power(xp: Any, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    """The result has the type of the base."""
    base, exponent = inputs
    if base.dtype.kind not in "iu":
        return xp.power(base, exponent).astype(base.dtype)
    real = xp.power(base.astype(np.float64), exponent.astype(np.float64)).astype(base.dtype)
    if exponent.dtype.kind not in "iu":
        return real
    whole = xp.power(base, xp.maximum(exponent, np.zeros((), exponent.dtype))).astype(base.dtype)
    return xp.where(exponent < 0, real, whole)


def _gather(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    options = {} if xp is np else {"mode": "clip"}
    data, index = inputs
    axis = attrs.get("axis", 0)
    return xp.take(data, xp.where(index < 0, index + data.shape[axis], index), axis=axis, **options)


def _gather_elements(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    data, index = inputs
    axis = attrs.get("axis", 0)
    positive = xp.where(index < 0, index + data.shape[axis], index)
    # Along other axes, an index may be shorter than the data.
    ends = [None if at == axis % data.ndim else size for at, size in enumerate(index.shape)]
    data = data[tuple(map(slice, ends))]
    return xp.take_along_axis(data, positive, axis=axis)


def _matmul(xp: Any, inputs: list[Any], _: Mapping[str, Any]) -> Any:
    if xp is np:
        return np.matmul(*inputs)
    return xp.matmul(*inputs, precision="highest")


def _gemm(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    left = inputs[0].T if attrs.get("transA") else inputs[0]
    right = inputs[1].T if attrs.get("transB") else inputs[1]
    product = _matmul(xp, [left, right], {}) * np.asarray(attrs.get("alpha", 1.0), left.dtype)
    bias = inputs[2] if len(inputs) > 2 else None
    return product if bias is None else product + bias * np.asarray(attrs.get("beta", 1.0), left.dtype)


def _normalize(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    x, scale, bias = [*inputs, None][:3]
    axes = tuple(range(attrs.get("axis", -1) % x.ndim, x.ndim))
    wide = x.astype(np.float32) if x.dtype == np.float16 else x  # squares above 256 exceed fp16
    centered = wide - wide.mean(axes, keepdims=True)
    variance = xp.square(centered).mean(axes, keepdims=True)
    epsilon = np.asarray(attrs.get("epsilon", 1e-5), wide.dtype)
    normalized = (centered / xp.sqrt(variance + epsilon)).astype(x.dtype) * scale
    return normalized if bias is None else normalized + bias


def _reshape(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    data, shape = inputs[0], inputs[1].tolist()
    if not attrs.get("allowzero"):
        shape = [data.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    if -1 in shape and data.size == 0:
        known = math.prod(size for size in shape if size != -1)
        shape[shape.index(-1)] = data.size // known if known else 0
    return xp.reshape(data, shape)


def _flatten(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    shape, axis = inputs[0].shape, attrs.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return xp.reshape(inputs[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _slice(_: Any, inputs: list[Any], __: Mapping[str, Any]) -> Any:
    data, starts, ends, axes, steps = [*inputs, None, None][:5]
    index = [slice(None)] * data.ndim
    count = len(starts)
    axes = range(count) if axes is None else axes.tolist()
    steps = [1] * count if steps is None else steps.tolist()
    for axis, start, end, step in zip(axes, starts.tolist(), ends.tolist(), steps, strict=True):
        start = start if step > 0 else max(start, -data.shape[axis])
        index[axis] = slice(start, None if step < 0 and end < -data.shape[axis] else end, step)
    return data[tuple(index)]


def _softmax(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    axis = attrs.get("axis", -1)
    powers = xp.exp(inputs[0] - inputs[0].max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def _softmax_of_matrix(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    """Along all axes from the given one."""
    matrix = _flatten(xp, inputs, attrs)
    return xp.reshape(_softmax(xp, [matrix], {}), inputs[0].shape)


def _split(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    axis, sizes = attrs.get("axis", 0), attrs.get("split")
    if len(inputs) > 1 and inputs[1] is not None:
        sizes = inputs[1].tolist()
    if sizes is None:
        sizes = [-(-inputs[0].shape[axis] // attrs[OUTPUTS])] * attrs[OUTPUTS]
    return tuple(xp.split(inputs[0], np.cumsum(sizes)[:-1].tolist(), axis=axis))


def _squeeze(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    axes = attrs.get("axes") if len(inputs) < 2 or inputs[1] is None else inputs[1].tolist()
    return xp.squeeze(inputs[0], None if axes is None else tuple(axes))


def _unsqueeze(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    axes: Sequence[int] = attrs["axes"] if len(inputs) < 2 else inputs[1].tolist()
    return xp.expand_dims(inputs[0], tuple(axes))


def _top(xp: Any, inputs: list[Any], attrs: Mapping[str, Any]) -> Any:
    axis, data, largest = attrs.get("axis", -1), inputs[0], attrs.get("largest", 1)
    order = xp.argsort(xp.flip(data, axis) if largest else data, axis=axis, stable=True)
    if largest:  # backwards, the first of equal values still comes first; the negative of a number may not exist
        order = data.shape[axis] - 1 - xp.flip(order, axis)
    order = order.take(np.arange(int(inputs[1].item())), axis=axis)
    return xp.take_along_axis(data, order, axis=axis), order.astype(np.int64)


OUTPUTS = "num_outputs"
_UNARY = {
    **{"Abs": "abs", "Ceil": "ceil", "Cos": "cos", "Exp": "exp", "Floor": "floor", "Log": "log", "Neg": "negative"},
    **{"Not": "logical_not", "Reciprocal": "reciprocal", "Round": "round", "Sign": "sign", "Sin": "sin"},
    **{"Sqrt": "sqrt", "Tanh": "tanh"},
}
_BINARY = {
    **{"Add": "add", "Sub": "subtract", "Mul": "multiply", "Equal": "equal", "Greater": "greater"},
    **{"GreaterOrEqual": "greater_equal", "Less": "less", "LessOrEqual": "less_equal", "And": "logical_and"},
    **{"Or": "logical_or", "Xor": "logical_xor"},
}
_REDUCTIONS = {"ReduceMax": "max", "ReduceMean": "mean", "ReduceMin": "min", "ReduceProd": "prod", "ReduceSum": "sum"}
OPERATORS: Mapping[str, Function] = {
    **{operator: _unary(name) for operator, name in _UNARY.items()},
    **{operator: _binary(name) for operator, name in _BINARY.items()},
    **{operator: _reduction(name) for operator, name in _REDUCTIONS.items()},
    "ArgMax": _best("argmax"),
    "ArgMin": _best("argmin"),
    "Cast": _cast,
    "CastLike": lambda _, inputs, __: inputs[0].astype(inputs[1].dtype),
    "Concat": lambda xp, inputs, attrs: xp.concatenate(inputs, attrs["axis"]),
    "Constant": _constant,
    "Div": _divide,
    "Erf": _erf,
    "Expand": lambda xp, inputs, _: xp.broadcast_to(
        inputs[0], np.broadcast_shapes(inputs[0].shape, tuple(inputs[1].tolist()))
    ),
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Gemm": _gemm,
    "Identity": lambda _, inputs, __: inputs[0],
    "LayerNormalization": _normalize,
    "MatMul": _matmul,
    "Max": _folded("maximum"),
    "Min": _folded("minimum"),
    "Pow": _power,
    "Range": lambda _, inputs, __: np.arange(*(value.item() for value in inputs), dtype=inputs[0].dtype),
    "Relu": lambda xp, inputs, _: xp.maximum(inputs[0], np.zeros((), inputs[0].dtype)),
    "Reshape": _reshape,
    "Shape": lambda _, inputs, attrs: np.array(
        inputs[0].shape[attrs.get("start", 0) : attrs.get("end", inputs[0].ndim)], np.int64
    ),
    "Sigmoid": lambda xp, inputs, _: 1 / (1 + xp.exp(-inputs[0])),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "TopK": _top,
    "Transpose": lambda xp, inputs, attrs: xp.transpose(inputs[0], attrs.get("perm")),
    "Unsqueeze": _unsqueeze,
    "Where": lambda xp, inputs, _: xp.where(*inputs),
}
_EARLY: Mapping[str, tuple[int, Any]] = {
    "Concat": (4, None),  # another default axis
    "Softmax": (13, _softmax_of_matrix),
}
"""Operators that meant something else before an opset, and how that is computed; ``None`` if it is not."""
_RESULTS = {"Split": sys.maxsize, "TopK": 2}  # at most; 1 for the others
_TYPES = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16})  # numbers and booleans, none narrower than 8 bits
_STATED = {"select_last_index": 0, "sorted": 1, "stash_type": 1}
_ATTRIBUTES = {
    **{operator: {"axes", "keepdims", "noop_with_empty_axes"} for operator in _REDUCTIONS},
    **{operator: {"axis", "keepdims"} for operator in ("ArgMax", "ArgMin")},
    **{operator: {"axis"} for operator in ("Concat", "Flatten", "Gather", "GatherElements", "Softmax")},
    **{operator: {"axes"} for operator in ("Squeeze", "Unsqueeze")},
    "Cast": {"to"},
    "Constant": {"value", "value_float", "value_floats", "value_int", "value_ints"},
    "Gemm": {"alpha", "beta", "transA", "transB"},
    "LayerNormalization": {"axis", "epsilon"},
    "Reshape": {"allowzero"},
    "Shape": {"start", "end"},
    "Split": {"axis", "split", OUTPUTS},
    "TopK": {"axis", "largest"},
    "Transpose": {"perm"},
}
