"""What ONNX Runtime's CPU provider computes in other types, or with other defaults: rows of the table in ``faults``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isorun.plugin import Fault
from isorun_backends.common_faults import of_one_step, shrink_by_selection
from isorun_backends.nodes import Condition, Nodes, attribute_of, dtype_of, input_of, kind_of
from isorun_backends.onnxruntime.row import fault_in_1_32 as fault

if TYPE_CHECKING:
    import onnx_ir as ir


def _has(*kinds: str) -> Condition:
    return lambda node, _: kind_of(input_of(node, 0)) in kinds


def _sign_in_single(op: Nodes, node: ir.Node) -> ir.Value:
    x = node.inputs[0]
    return op.cast(op("Sign", op.cast(x, np.float32)), dtype_of(x))


def _lacks_parameters(node: ir.Node, _: int) -> bool:
    """Whether activations have parameters whose defaults are not 0, and none are given."""
    names = set(attribute_of(node, "activations", ()))
    lacks_alpha = not attribute_of(node, "activation_alpha", ())
    lacks_beta = not attribute_of(node, "activation_beta", ())
    return ("ScaledTanh" in names and lacks_beta) or (
        lacks_alpha and not names.isdisjoint(("Affine", "ScaledTanh", "ThresholdedRelu"))
    )


def _recurrent(operator: str, names: str) -> Fault:
    return of_one_step(
        *(fault, operator, "ThresholdedRelu, Affine or ScaledTanh in `activations`, without its parameters"),
        *("that with parameters of 0", _lacks_parameters),
        attribute=f"activations = [{names}]",
        expected=0,
    )


ROWS = (
    fault(
        "Shrink | fp64 | the number that fp32 holds",
        "g (double[n] x) => (double[n] y) { y = Shrink <bias = 0.5> (x) }",
        applies=_has("DOUBLE"),
        rewrite=shrink_by_selection,
        feeds={"x": np.array([1e300, -2])},
    ),
    fault(
        "Shrink | integers of 32 or 64 bits | those of their nearest numbers in fp32",
        "g (int32[n] x) => (int32[n] y) { y = Shrink <bias = 100000000.0> (x) }",
        applies=_has("INT32", "INT64", "UINT32", "UINT64"),
        feeds={"x": [100_000_001, 3]},
    ),
    fault(
        "Sign | NaN in fp16 | 0",
        "g (float16[n] x) => (float16[n] y) { y = Sign (x) }",
        applies=_has("FLOAT16", "BFLOAT16"),
        rewrite=_sign_in_single,
        feeds={"x": [np.nan, -2, 0]},
    ),
    _recurrent("LSTM", '"Sigmoid", "ThresholdedRelu", "Tanh"'),
    _recurrent("GRU", '"Sigmoid", "ThresholdedRelu"'),
    _recurrent("RNN", '"ThresholdedRelu"'),
    fault(
        "ReduceSum | integers above 2^53, or such results; in Einsum, Pow, ReduceL1, ReduceMean, ReduceProd, "
        "ReduceSumSquare too | that of their nearest numbers in fp64",
        "g (int64[n] x) => (int64[1] y) { y = ReduceSum (x) }",
        feeds={"x": [2**60 + 1, -(2**60)]},
    ),
)
