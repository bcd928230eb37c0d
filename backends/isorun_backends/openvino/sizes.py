"""Invalid sizes for which OpenVINO returns an answer: rows of the table in ``faults``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun.plugin import Fault
from isorun_backends.nodes import Nodes, attribute_of, is_constant, is_fixed, producer, shape_of, where_below
from isorun_backends.openvino import conditions, rewrites
from isorun_backends.openvino.row import fault

if TYPE_CHECKING:
    import onnx_ir as ir


def _terms(node: ir.Node) -> int | None:
    """The number of terms in the sums of a product with constant weights; ``None`` if it is not known."""
    weights = node.inputs[1]
    sizes = shape_of(weights)
    if not sizes or weights is None or not (is_constant(weights) or is_fixed(weights)):
        return None
    axis = -1 if attribute_of(node, "transB", 0) or len(sizes) == 1 else -2
    return sizes[axis] if isinstance(sizes[axis], int) else None


def _summed_axis(node: ir.Node) -> int:
    """The axis of the first factor that is summed over."""
    return -2 if attribute_of(node, "transA", 0) else -1


def multiplies_unknown_size(node: ir.Node, _: int) -> bool:
    """Whether weights multiply a tensor of another number of terms, for all that is known. Quantized ones keep their
    operators together."""
    if _terms(node) is None or producer(node.inputs[0], "DequantizeLinear") is not None:
        return False
    sizes = shape_of(node.inputs[0])
    return sizes is None or not isinstance(sizes[_summed_axis(node)], int)


def multiply_size_of_weights(op: Nodes, node: ir.Node) -> Sequence[ir.Value]:
    """The product with a tensor that is reshaped to the size of the weights, which is an error if it has another."""
    x, *rest = node.inputs
    terms, sizes = _terms(node), shape_of(x)
    if sizes is None:
        others = op("Slice", op("Shape", x), op.constant([0]), op.constant([-1]))
        return op.like(node, op("Reshape", x, op("Concat", others, op.constant([terms]), axis=0)), *rest)
    pattern = [0] * len(sizes)  # 0 keeps a size
    pattern[_summed_axis(node)] = terms or 0
    return op.like(node, op("Reshape", x, op.constant(pattern)), *rest)


def _sizes_of_weights(node: ir.Node) -> dict[int, int]:
    """By axis of the first factor of an Einsum, the number of terms that constant weights have there; empty where the
    factor has it."""
    factors, _, kept = attribute_of(node, "equation", "").replace(" ", "").partition("->")
    left, _, right = factors.partition(",")
    x, weights = (shape_of(factor) for factor in (*node.inputs, None)[:2])
    if not (left.isalpha() and right.isalpha() and is_constant(node.inputs[-1]) and x and weights):
        return {}
    terms = {label: size for label, size in zip(right, weights, strict=False) if label not in kept}
    axes = zip(left, x, strict=False)
    return {
        axis: terms[label] for axis, (label, size) in enumerate(axes) if label in terms and not isinstance(size, int)
    }


def sum_sizes_of_weights(op: Nodes, node: ir.Node) -> Sequence[ir.Value]:
    """The sum over a tensor that is reshaped to the sizes of the weights, which is an error if it has others."""
    x, weights = node.inputs
    sizes = _sizes_of_weights(node)
    pattern = [sizes.get(axis, 0) for axis in range(len(shape_of(x) or ()))]
    return op.like(node, op("Reshape", x, op.constant(pattern)), weights)


def _product(operator: str, **fields: Any) -> Fault:
    defaults: dict[str, Any] = {
        "applies": multiplies_unknown_size,
        "rewrite": multiply_size_of_weights,
        "feeds": {"x": np.ones((2, 4))},
        "expected": [np.zeros((2, 2))],
    }
    return fault(
        f"{operator} | constant weights, and a tensor of another number of terms | "
        "sums of memory after its end, or of a part of the terms",
        invalid=True,
        **defaults | fields,
    )


def _by_weights(node: str) -> str:
    return f"g (float[a, b] x) => (float[a, 2] y) <float[3, 2] w = {{1, 2, 3, 4, 5, 6}}> {{ y = {node} }}"


def _window(operator: str) -> Fault:
    return fault(
        f"{operator} | a computed size that is negative | a window of its absolute value",
        f"g (int64 n) => (float[a] y) {{ y = {operator} (n) }}",
        applies=conditions.computes_input(0),
        rewrite=lambda op, node: op.like(node, where_below(op, node.inputs[0], 0, 0)),
        feeds={"n": -5},
    )


ROWS = (
    *map(_window, ("HannWindow", "HammingWindow", "BlackmanWindow")),
    _product("MatMul", model=_by_weights("MatMul (x, w)")),
    _product("Gemm", model=_by_weights("Gemm (x, w)")),
    _product("com.microsoft.FusedMatMul", model=_by_weights("com.microsoft.FusedMatMul <alpha = 2.0> (x, w)")),
    _product(
        "Einsum",
        model=_by_weights('Einsum <equation = "ij,jk->ik"> (x, w)'),
        applies=lambda node, _: bool(_sizes_of_weights(node)),
        rewrite=sum_sizes_of_weights,
    ),
    _product(
        "com.microsoft.Attention",
        model="g (float[a, b, c] x) => (float[a, b, 1] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}, float[3] v = {1, 2, 3}> "
        "{ y = com.microsoft.Attention <num_heads = 1> (x, w, v) }",
        feeds={"x": np.ones((1, 2, 4))},
        expected=[np.zeros((1, 2, 1))],
    ),
    fault(
        "Compress | more conditions than rows | memory after the last row",
        "g (float[a] x, bool[b] k) => (float[c] y) { y = Compress <axis = 0> (x, k) }",
        applies=conditions.computes_input(1),
        rewrite=rewrites.compress_rows,
        feeds={"x": [1, 2, 3], "k": np.ones(4)},
        expected=[[1, 2, 3]],
    ),
    fault(
        "Split | a computed size that is negative | memory after the last element",
        "g (float[a] x, int64[2] n) => (float[b] y, float[c] z) { y, z = Split <axis = 0> (x, n) }",
        applies=conditions.computes_input(1),
        rewrite=lambda op, node: op.like(node, node.inputs[0], where_below(op, node.inputs[1], 0, 2**30)),
        feeds={"x": np.arange(4), "n": [-1, 5]},
        expected=[np.zeros(0), np.zeros(0)],
        invalid=True,
    ),
)
