"""What OpenVINO computes wrongly, without an error: the table of docs/runtime-faults.md.

``isorun doctor --operators`` tests every row on the installed version. The rows were found on the CPU and apply to
every device: many are faults of the ONNX frontend, which all share, and what replaces a node is equivalent on any.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isorun.plugin import CONSTANTS, Fault, KnownFailure, KnownFaults
from isorun_backends.common_empties import recurrent_of_nothing
from isorun_backends.common_faults import flattened, nonzero_of_scalar, with_coupled_gates, without_lengths
from isorun_backends.nodes import GATES, differs, input_of, shape_of, static
from isorun_backends.openvino import (
    activations,
    arithmetic,
    conditions,
    empties,
    images,
    loops,
    normalizations,
    quantization,
    reductions,
    rewrites,
    rotations,
    sizes,
    texts,
)
from isorun_backends.openvino.row import fault

_INT64 = KnownFailure(
    reason="OpenVINO's CPU plugin computes 64-bit integers in 32 bits, so greater feeds are rejected",
    kind="not_implemented",
    exception="InvalidFeeds",
    reference="https://github.com/openvinotoolkit/openvino/issues/24072",
)
_DOUBLE = "OpenVINO's CPU plugin computes fp64 in fp32"
_FP64 = KnownFailure(
    reason=_DOUBLE, kind="never", exception="AssertionError", reference="none: it has no kernels for fp64"
)
_ORDER = "OpenVINO orders equal values in another way"
_RANDOM = "random numbers of another generator"
_ROUNDING = "rounding of fp32: off by 6e-5 where values are 1000, or by 1 of 255"
_X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def _reduction(operator: str, rewrite: Any) -> Fault:
    return fault(
        f"{operator} | the attribute `axes` (opsets 13 to 17) | it reduces over all axes",
        f"g (float[a, b] x) => (float[c] y) {{ y = {operator} <axes = [1], keepdims = 0> (x) }}",
        applies=lambda node, opset: 13 <= opset < 18 and "axes" in node.attributes,
        rewrite=rewrite,
        feeds={"x": _X},
    )


def _extremum(operator: str, infinity: float) -> Fault:
    return fault(
        f"{operator} | all elements are infinite, or there are none | 3.4e38 instead of an infinity",
        f"g (float[a, b] x) => (float[a, c] y) {{ y = {operator} <axes = [1]> (x) }}",
        applies=conditions.is_float,
        rewrite=rewrites.infinite_extremum,
        feeds={"x": [[infinity, infinity], [1, infinity]]},
    )


def _recurrent(operator: str) -> Fault:
    rows, random = GATES[operator] * 2, np.random.default_rng(0)
    return fault(
        f"{operator} | `layout` = 1 (batch first) | it reads the batch as the sequence",
        f"g (float[3, 2, 2] x, float[1, {rows}, 2] w, float[1, {rows}, 2] r) => (float[3, 2, 1, 2] y) "
        f"{{ y = {operator} <hidden_size = 2, layout = 1> (x, w, r) }}",
        applies=differs("layout", 0),
        feeds={
            "x": random.normal(size=(3, 2, 2)).astype(np.float32),
            "w": random.normal(size=(1, rows, 2)).astype(np.float32),
            "r": random.normal(size=(1, rows, 2)).astype(np.float32),
        },
    )


ROWS = (
    *arithmetic.ROWS,
    *loops.ROWS,
    _reduction("ReduceL1", rewrites.reduce_l1),
    _reduction("ReduceLogSum", rewrites.reduce_log_sum),
    _reduction("ReduceLogSumExp", rewrites.reduce_log_sum_exp),
    _extremum("ReduceMax", -np.inf),
    _extremum("ReduceMin", np.inf),
    nonzero_of_scalar(fault, refused=True),
    flattened(fault, "Softmax", range(11, 13)),
    fault(
        "Expand | to the shape of a scalar | an array of rank 1, or an error",
        "g (float x) => (float y) <int64[0] s = {}> { y = Expand (x, s) }",
        applies=lambda node, _: static(node.inputs[1]) == [] or shape_of(node.inputs[1]) == [0],
        rewrite=lambda op, node: op("Identity", node.inputs[0]),
        feeds={"x": 3},
    ),
    fault(
        "Tile | computed repeats of three or more axes | memory that was never written",
        "g (float[a, b, c, d] x, int64[4] r) => (float[e, f, g, h] y) { y = Tile (x, r) }",
        applies=conditions.tiles_many_axes,
        rewrite=rewrites.tile_by_axis,
        feeds={"x": np.arange(120).reshape(2, 3, 4, 5), "r": [7, 6, 4, 2]},
    ),
    fault(
        "DFT | `onesided` = 1 | an output of another rank",
        "g (float[1, 4, 3, 1] x) => (float[1, a, 3, 2] y) { y = DFT <onesided = 1, axis = 1> (x) }",
        applies=differs("onesided", 0),
        feeds={"x": np.arange(12).reshape(1, 4, 3, 1)},
    ),
    fault(
        "DFT | an axis other than 1 (opset 20 and later) | it transforms axis 1",
        "g (float[1, 4, 3, 1] x) => (float[1, 4, 3, 2] y) <int64 a = {2}> { y = DFT (x, , a) }",
        applies=conditions.dft_axis,
        opset=20,
        feeds={"x": np.arange(12).reshape(1, 4, 3, 1)},
    ),
    *map(_recurrent, GATES),
    *(without_lengths(fault, operator, conditions.ignores_lengths) for operator in GATES),
    with_coupled_gates(fault),
    fault(
        "SequenceAt | a place that is computed, or that the sequence lacks | the elements of the whole sequence",
        ("g (float[a] x, int64 i) => (float[a] y) { s = SequenceConstruct (x, x) y = SequenceAt (s, i) }"),
        applies=conditions.selects_beyond,
        feeds={"x": np.ones(2), "i": 9},
        expected=[np.zeros(0)],
    ),
    fault(
        "Col2Im | a computed block, which may be empty | it ends the process",
        "g (float[1, 4, 1] x, int64[2] b) => (float[n, c, h, w] y) <int64[2] s = {2, 2}> { y = Col2Im (x, s, b) }",
        applies=conditions.may_be_empty(2),
        opset=18,
        feeds={"x": np.ones((1, 4, 1)), "b": [0, 0]},
        ends_process=True,
    ),
    fault(
        "DFT | a computed length, which may be 0 | it ends the process",
        "g (float[1, 4, 1] x, int64 n) => (float[1, m, 2] y) { y = DFT <axis = 1> (x, n) }",
        applies=conditions.may_be_empty(1),
        feeds={"x": np.ones((1, 4, 1)), "n": 0},
        ends_process=True,
    ),
    fault(
        "QLinearConv | scales of the weights by channel | numbers that are off by up to 44 of 255",
        "g (uint8[1, 1, n] x) => (uint8[1, 2, n] y) <float s = {1}, uint8 z = {0}, uint8[2, 1, 1] w = {10, 10}, "
        "float[2] t = {0.1, 0.2}, uint8[2] v = {0, 0}> { y = QLinearConv (x, s, z, w, t, v, s, z) }",
        applies=lambda node, _: shape_of(node.inputs[4]) not in ([], [1]),
        feeds={"x": [[[1, 50, 100]]]},
        expected=[[[[1, 50, 100], [2, 100, 200]]]],
    ),
    fault(
        "LSTM | peepholes (the input `P`) | it ignores them",
        "g (float[1, 1, 1] x, float[1, 4, 1] w, float[1, 4, 1] r, float[1, 3] p) => (float[1, 1, 1, 1] y) "
        "<float[1, 8] b = {0, 0, 0, 0, 0, 0, 0, 0}, int32[1] l = {1}, float[1, 1, 1] h = {0}, "
        "float[1, 1, 1] c = {1}> { y = LSTM <hidden_size = 1> (x, w, r, b, l, h, c, p) }",
        applies=lambda node, _: input_of(node, 7) is not None,
        feeds={"x": np.ones((1, 1, 1)), "w": np.ones((1, 4, 1)), "r": np.ones((1, 4, 1)), "p": np.full((1, 3), 2)},
    ),
    fault(
        "Attention | a local window | it attends to every position",
        "g (float[1, 1, 5, 1] q) => (float[1, 1, 5, 1] y) "
        "{ y = Attention <left_window_size = 1, right_window_size = 2> (q, q, q) }",
        applies=conditions.windowed,
        opset=25,
        feeds={"q": np.arange(5).reshape(1, 1, 5, 1)},
    ),
    fault(
        "Attention | `is_causal` = 1 with a past, for more or fewer queries than new keys | another mask",
        "g (float[1, 1, 2, 1] q, float[1, 1, 3, 1] k) => (float[1, 1, 2, 1] y, float[1, 1, 6, 1] a, "
        "float[1, 1, 6, 1] b) { y, a, b = Attention <is_causal = 1> (q, k, k, , k, k) }",
        applies=conditions.causal_with_past,
        opset=23,
        feeds={"q": np.arange(2).reshape(1, 1, 2, 1), "k": np.arange(3).reshape(1, 1, 3, 1)},
    ),
    *(recurrent_of_nothing(fault, operator, loops.keep) for operator in GATES),  # after those that refuse it
    *images.ROWS,
    *normalizations.ROWS,
    *reductions.ROWS,
    *rotations.ROWS,
    *sizes.ROWS,
    *texts.ROWS,
    *empties.ROWS,  # after those that refuse a node
    *activations.ROWS,
    *quantization.ROWS,
    fault(
        "BitShift | signed integers, integers of 8 bits, and scalars | "
        "it saturates, rounds, and shifts in zeros; an array of rank 1",
        'g (int32[n] x, int32[n] s) => (int32[n] y) { y = BitShift <direction = "RIGHT"> (x, s) }',
        applies=conditions.shifts_wrongly,
        opset=28,
        feeds={"x": [-8, -1], "s": [1, 1]},
    ),
    fault(
        f"{CONSTANTS} | beyond 32 bits, of uint32 too, except 2^63-1 and -2^63 (no limit) and numbers that only Slice "
        "reads | the nearest 32-bit number",
        "g (int64[n] x) => (int64[n] y) <int64 c = {8589934597}> { y = Add (x, c) }",
        applies=conditions.number_beyond_32_bits,
        feeds={"x": [1]},
    ),
    fault(
        "Mul | results beyond 32 bits, as of all arithmetic of int64, uint64 and uint32; feeds beyond 32 bits are "
        "`InvalidFeeds` | the lower 32 bits; of uint32, 2^31 - 1 when it loads the model",
        "g (int64[n] x) => (int64[n] y) { y = Mul (x, x) }",
        feeds={"x": [2**17]},
    ),
    fault(
        "Relu | NaN, in Celu, Clip, Exp, HardSigmoid, Max, Min, ReduceMax, ReduceMin, Softmax, LogSoftmax and pools "
        "too; infinity in Gelu | a number",
        "g (float[n] x) => (float[n] y) { y = Relu (x) }",
        feeds={"x": [np.nan, 1]},
    ),
    fault(
        "Cast | infinities to or from fp64, and numbers above 3.4e38, as in all fp64 arithmetic | 3.4e38",
        "g (float[n] x) => (double[n] y) { y = Cast <to = 11> (x) }",
        feeds={"x": [np.inf]},
    ),
    fault(
        "QuantizeLinear | numbers halfway between two integers, with an odd zero point | "
        "it adds the zero point before it rounds to even: the other integer",
        ("g (float[n] x) => (uint8[n] y) <float s = {1}, uint8 z = {3}> { y = QuantizeLinear (x, s, z) }"),
        feeds={"x": [0.5, 1.5]},
    ),
    fault(
        "TopK | equal values | their indices in another order",
        "g (float[n] x) => (float[3] v, int64[3] i) <int64[1] k = {3}> { v, i = TopK (x, k) }",
        feeds={"x": np.zeros(5)},
    ),
    fault(
        "NonMaxSuppression | an overlap that equals `iou_threshold` | the box is suppressed",
        "g (float[1, 2, 4] b, float[1, 1, 2] s) => (int64[n, 3] y) "
        "<int64[1] m = {2}, float[1] t = {0.5}> { y = NonMaxSuppression (b, s, m, t) }",
        applies=lambda *_: True,
        rewrite=rewrites.next_overlap,
        feeds={"b": [[[0, 0, 1, 1], [0, 0, 1, 0.5]]], "s": [[[0.9, 0.8]]]},
    ),
)

_CHECKS = {f"test_inputs_and_outputs_of_every_type[{kind}]": _INT64 for kind in ("int64", "uint64", "uint32")}

_INT16 = KnownFailure(
    reason="the CPU plugin of OpenVINO 2025.4, which the wheel has, does not join tensors of 16-bit integers",
    kind="not_implemented",
    exception="BackendFailed",
    reference="none: OpenVINO 2026.4 joins them",
)

LEGACY = KnownFaults(
    rows=ROWS,
    checks=_CHECKS | {f"test_inputs_and_outputs_of_every_type[{kind}]": _INT16 for kind in ("int16", "uint16")},
)
"""Of onnxruntime-openvino 1.24.1."""

PROVIDER = KnownFaults(rows=ROWS, checks=_CHECKS)
"""Of ONNX Runtime's providers, which compute with another version of OpenVINO: what is computed wrongly is taken over,
what only tests of the installed version can tell is not."""

FAULTS = KnownFaults(
    rows=ROWS,
    checks=_CHECKS | {"test_sums_are_those_of_their_type[double]": _FP64},
    node_tests={
        "test_bernoulli_double_expanded": _RANDOM,
        "test_bernoulli_seed_expanded": _RANDOM,
        "test_cast_DOUBLE_to_FLOAT": _DOUBLE,
        "test_cast_FLOAT16_to_DOUBLE": _DOUBLE,
        "test_cast_FLOAT_to_DOUBLE": _DOUBLE,
        "test_dft_axis_opset19": _ROUNDING,
        "test_dft_inverse_opset19": _ROUNDING,
        "test_dft_opset19": _ROUNDING,
        "test_dynamicquantizelinear": _ROUNDING,
        "test_dynamicquantizelinear_expanded": _ROUNDING,
        "test_resize_downsample_scales_cubic_align_corners": "ONNX Runtime computes the same",
        "test_resize_downsample_scales_linear_align_corners": "ONNX Runtime computes the same",
        "test_top_k_same_values": _ORDER,
        "test_top_k_same_values_2d": _ORDER,
        "test_top_k_same_values_largest": _ORDER,
        "test_operator_add_broadcast": _DOUBLE,
        "test_operator_add_size1_right_broadcast": _DOUBLE,
        "test_operator_add_size1_singleton_broadcast": _DOUBLE,
        "test_operator_addconstant": _DOUBLE,
    },
)
