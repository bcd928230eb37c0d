"""What ONNX Runtime's WebGPU provider computes wrongly, without an error.

Its kernels for fp16 also sum in fp16, where other runtimes sum in fp32. Found on Mesa's software driver; that of
LayerNormalization on an NVIDIA H100 too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault, KnownFaults
from isorun_backends.common_faults import is_half, through_single
from isorun_backends.nodes import Rows, shape_of

if TYPE_CHECKING:
    import onnx_ir as ir

_fault = Rows("onnxruntime-ep-webgpu 0.4.0")
_LONG = 1024
"""More terms of one sign than this in a sum of fp16 are off by more than 1 %."""
_REDUCED = "<axes = [1], keepdims = 0> (x)"
_ROW, _IMAGE = ([1, 4096], [1]), ([1, 1, 64, 64], [1, 1, 1, 1])  # the shapes of inputs and outputs
_SHORTEST = 5e-7  # of numbers that six decimals tell from 0


def _normalization(operator: str, opset: int, parameters: Mapping[str, float]) -> Fault:
    declared = "".join(f", float16[3] {name}" for name in parameters)
    call = f"{operator} <epsilon = 1e-12> ({', '.join(('x', *parameters))})"
    return _fault(
        f"{operator} | fp16, an epsilon below 3e-8, a variance of 0 | NaN: the epsilon is 0 in fp16",
        f"g (float16[2, 3, 3] x{declared}) => (float16[2, 3, 3] y) {{ y = {call} }}",
        applies=is_half,
        rewrite=through_single,
        opset=opset,
        feeds={"x": np.zeros((2, 3, 3), np.float16)}
        | {name: np.full(3, value, np.float16) for name, value in parameters.items()},
        expected=[np.zeros((2, 3, 3))],
    )


def _overflowing(operator: str, call: str, shapes: tuple[list[int], list[int]], expected: float) -> Fault:
    of_input, of_output = shapes
    return _fault(
        f"{operator} | fp16, a partial sum above 65,504 | infinity, where the result is a number",
        f"g (float16{of_input} x) => (float16{of_output} y) {{ y = {operator} {call} }}",
        applies=is_half,
        rewrite=through_single,
        feeds={"x": np.full(of_input, 300, np.float16)},
        expected=[np.full(of_output, expected, np.float16)],
    )


def _product(operator: str) -> Fault:
    return _fault(
        f"{operator} | fp16, sums of more than {_LONG:,} terms | "
        "sums in fp16, which lose small terms: half of 4,096 times 0.25",
        f"g (float16[2, 4096] x, float16[4096, 8] w) => (float16[2, 8] y) {{ y = {operator} (x, w) }}",
        applies=_has_long_sums,
        rewrite=through_single,
        feeds={"x": np.full((2, 4096), 0.5), "w": np.full((4096, 8), 0.5)},
        expected=[np.full((2, 8), 1024)],
    )


def _has_long_sums(node: ir.Node, opset: int) -> bool:
    """Whether the number of terms is known to be great; of ``Gemm``, before any transposition of the first factor."""
    left, right = node.inputs[:2]
    if not is_half(node, opset) or left is None or right is None:
        return False
    axis, of_right = -1, -2
    if node.op_type == "Gemm":
        axis = 0 if "transA" in node.attributes and node.attributes["transA"].as_int() else 1
        of_right = 1 if "transB" in node.attributes and node.attributes["transB"].as_int() else 0
    sizes = [shape[of] for value, of in ((left, axis), (right, of_right)) if len(shape := shape_of(value) or ()) > 1]
    return any(isinstance(size, int) and size > _LONG for size in sizes)


FAULTS = KnownFaults(
    rows=(
        _normalization("LayerNormalization", 17, {"scale": 1}),
        _normalization("RMSNormalization", 23, {"scale": 1}),
        _normalization("BatchNormalization", 17, {"scale": 1, "bias": 0, "mean": 0, "var": 0}),
        _fault(
            "InstanceNormalization | an epsilon below 5e-7, a variance of 0 | NaN: the epsilon has six decimals",
            "g (float[1, 1, 2] x, float[1] s, float[1] b) => (float[1, 1, 2] y) "
            "{ y = InstanceNormalization <epsilon = 1e-12> (x, s, b) }",
            applies=lambda node, _: "epsilon" in node.attributes and node.attributes["epsilon"].as_float() < _SHORTEST,
            feeds={"x": np.ones((1, 1, 2)), "s": np.ones(1), "b": np.ones(1)},
        ),
        _overflowing("ReduceMean", _REDUCED, _ROW, 300),
        _overflowing("ReduceL2", _REDUCED, _ROW, 19200),
        _overflowing("ReduceLogSum", _REDUCED, _ROW, np.log(300 * 4096)),
        _fault(
            "ReduceLogSumExp | elements above 88 (fp32) or 11 (fp16) | infinity: it does not subtract the maximum",
            "g (float[1, 2] x) => (float[1] y) { y = ReduceLogSumExp <axes = [1], keepdims = 0> (x) }",
            applies=lambda *_: True,
            feeds={"x": [[100, 100]]},
            expected=[[100 + np.log(2)]],
        ),
        _overflowing("GlobalAveragePool", "(x)", _IMAGE, 300),
        _overflowing("AveragePool", "<kernel_shape = [64, 64]> (x)", _IMAGE, 300),
        _product("MatMul"),
        _product("Gemm"),
    ),
)
