"""What OpenVINO computes wrongly in loops and branches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isorun_backends.nodes import Nodes, shape_of, static, where_below
from isorun_backends.openvino.row import fault

if TYPE_CHECKING:
    import onnx_ir as ir

# The inner loop runs three times, then not at all.
_TWO_RUNS = """g (float x) => (float last, float[k] y) <int64 one = {1}, int64 two = {2}, int64 three = {3}> {
    last, y = Loop <body = outer (int64 i, bool c, float s) => (bool c2, float s2, float total) {
        c2 = Identity (c)
        s2 = Identity (s)
        rest = Sub (one, i)
        trips = Mul (three, rest)
        kept, parts = Loop <body = inner (int64 j, bool d, float t) => (bool d2, float t2, float part) {
            d2 = Identity (d)
            t2 = Identity (t)
            part = Identity (t)
        }> (trips, , s)
        total = ReduceSum <keepdims = 0> (parts)
    }> (two, , x)
}"""


def _may_not_iterate(node: ir.Node, _: int) -> bool:
    """Whether a loop that collects results of its iterations may have none."""
    if len(node.attributes["body"].as_graph().outputs) - 1 <= len(node.inputs) - 2:
        return False
    trips, condition = map(static, node.inputs[:2])
    return trips is None or trips[0] < 1 or (node.inputs[1] is not None and condition is None)


def _may_run_for_ever(node: ir.Node, _: int) -> bool:
    """Whether the number of iterations may be negative."""
    trips = static(node.inputs[0])
    return node.inputs[0] is not None and (trips is None or trips[0] < 0)


def _count_iterations(op: Nodes, node: ir.Node) -> None:
    """The loop with one more value, the number of iterations, to which the collected results are cut."""
    import onnx_ir as ir

    trips = where_below(op, node.inputs[0], 0, 0) if _may_run_for_ever(node, 0) else node.inputs[0]
    body = node.attributes["body"].as_graph()
    carried, prefix = len(node.inputs) - 2, node.outputs[0].name or node.name or "loop"
    number = ir.Value(name=f"{prefix}.number", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    inside = Nodes()
    unit = inside.constant(1)
    increased = inside("Add", number, unit)
    unit.name, increased.name = f"{prefix}.one", f"{prefix}.increased"
    increased.type, increased.shape = number.type, number.shape
    body.extend(inside)
    body.inputs.append(number)
    body.outputs.insert(1 + carried, increased)
    zero, first, vector = op.constant(0), op.constant([0]), op.constant([1])
    results = op.like(node, trips, *node.inputs[1:], zero, outputs=len(body.outputs) - 1)
    count = op("Reshape", results[carried], vector)
    for value in results[:carried]:
        op("Identity", value)
    for value in results[carried + 1 :]:
        op("Slice", value, first, count, first)


def _reads_an_output(node: ir.Node, _: int) -> bool:
    """Whether a branch reads a value that is an output of the graph, too."""
    branches = [attribute.as_graph() for attribute in node.attributes.values()]
    read = (value for branch in branches for inner in branch.all_nodes() for value in inner.inputs)
    return any(value is not None and value.is_graph_output() and value.graph is node.graph for value in read)


def _is_dynamic(value: ir.Value) -> bool:
    import onnx_ir as ir

    sizes = shape_of(value)
    return isinstance(value.type, ir.TensorType | None) and (
        sizes is None or not all(isinstance(size, int) for size in sizes)
    )


def keep(
    op: Nodes, condition: ir.Value | None, outputs: Sequence[ir.Value], shapes: Iterable[list[Any] | None]
) -> None:
    """The outputs of an ``If``, as they are, in memory that later nodes do not use.

    OpenVINO allocates the memory of several nodes before it runs the first of them, up to one whose shape depends on
    computed numbers, and keeps what is read behind such a node. It does not count an ``If`` as one for its own outputs.

    Args:
        op: where nodes are added, those of the outputs last.
        shapes: what is known of their sizes.
    """
    number = op.cast(op("Reshape", condition, op.constant([1])), np.float32)
    zero = op.cast(op("Less", number, op.constant(0, np.float32)), np.int64)  # cannot be folded
    patterns = []
    for output, sizes in zip(outputs, shapes, strict=True):
        if sizes:  # 0 is the size as it is
            parts = [op.constant([size]) if isinstance(size, int) else zero for size in sizes]
            patterns.append(op("Concat", *parts, axis=0))
        else:
            patterns.append(op("Add", op("Shape", output), zero))
    for output, pattern in zip(outputs, patterns, strict=True):
        op("Reshape", output, pattern)


_BRANCHES = """g (float[a] x) => (float[a] h, float[b] y) <float least = {9}, float[1] w = {2}> {
    h = Mul (x, w)
    m = ReduceMax <keepdims = 0> (h)
    c = Greater (m, least)
    y = If (c) <then_branch = t () => (float[c] n) { n = Neg (h) }, else_branch = e () => (float[d] p) { p = Abs (h) }>
}"""

# The Concat is larger than what it reads, and the Softmax has read the output of the If before.
_GROWING = """g (float[a, b] x) => (float[c, d] y) <float least = {9}> {
    m = ReduceMax <keepdims = 0> (x)
    c = Greater (m, least)
    h = If (c) <
        then_branch = t () => (float[e, f] n) { n = Neg (x) }, else_branch = u () => (float[g, h] p) { p = Abs (x) }>
    s = Softmax (h)
    w = Concat <axis = 1> (s, s)
    y = Neg (w)
}"""

ROWS = (
    fault(
        "If | a branch reads a value that is an output of the graph, too | that value",
        _BRANCHES,
        applies=_reads_an_output,
        feeds={"x": np.array([-1, 1], np.float32)},
    ),
    fault(
        "If | outputs whose sizes are not fixed | memory that larger values overwrite, in the first run of a shape",
        _GROWING,
        applies=lambda node, _: any(map(_is_dynamic, node.outputs)),
        rewrite=lambda op, node: keep(op, node.inputs[0], op.like(node, *node.inputs), map(shape_of, node.outputs)),
        feeds={"x": np.arange(16, dtype=np.float32).reshape(2, 8)},
    ),
    fault(
        "Loop | no iteration, where results of each are collected | those of the run before",
        _TWO_RUNS,
        applies=_may_not_iterate,
        rewrite=_count_iterations,
        feeds={"x": np.array(2, np.float32)},
        expected=[np.array(2, np.float32), np.array([6, 0], np.float32)],
    ),
    fault(
        "Loop | a computed number of iterations that is negative | it never ends",
        """g (float[a] x, int64 n) => (float[b] y) <bool t = {1}> {
            y = Loop <body = inner (int64 i, bool c, float[k] s) => (bool d, float[k] u) {
                d = Identity (c)
                u = Add (s, s)
            }> (n, t, x)
        }""",
        applies=_may_run_for_ever,
        rewrite=lambda op, node: op.like(node, where_below(op, node.inputs[0], 0, 0), *node.inputs[1:]),
        feeds={"x": np.ones(2), "n": -1},
        ends_process=True,
    ),
)
